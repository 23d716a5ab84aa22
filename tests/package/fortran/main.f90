! SPDX-License-Identifier: Apache-2.0
! Arrays of several ranks and kinds from Fortran, by the script of tests/embed (X15):  mpirun -n N fortran_consumer SCRIPT
! Any second argument makes the last call fail without stat=.
program consumer
  use mpi
  use moonhalo
  use, intrinsic :: iso_fortran_env, only: real32, real64, int64
  use, intrinsic :: ieee_exceptions
  implicit none
  type(mh_session) :: session, unused
  character(0), target, asynchronous :: words(4)
  real(real64), allocatable, target, asynchronous :: cells(:, :)
  real(real64), target, asynchronous :: u(0:4, 3, 2)
  real(real32), target, asynchronous :: s(4)
  integer(int64), target, asynchronous :: n(2, 2)
  real(real64), target, asynchronous :: upper(3, 2), lower(0:3, 2)
  type(mh_box_list) :: boxes
  character(1000) :: script
  character(4000) :: report
  real(real64) :: out(4), wanted
  integer :: error, rank, ranks, stat, i, j, k
  logical :: halts

  call MPI_Init_thread(MPI_THREAD_MULTIPLE, i, error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  call get_command_argument(1, script)
  call mh_open(session, 'no_such_file.lua', MPI_COMM_WORLD, stat=stat)
  call expect(stat == MH_USAGE .and. index(mh_error(), 'cannot read the script') > 0, 'a missing script')
  ! As -ffpe-trap=invalid,zero,overflow: the program stops at such operations, the script does not.
  call ieee_set_halting_mode([ieee_invalid, ieee_divide_by_zero, ieee_overflow], .true.)
  call mh_open(session, trim(script), MPI_COMM_WORLD, settings='lr=0.5', timeout=30.0_real64, call_budget=20.0_real64)
  call mh_call(session, 'not_finite', out=out(1:3))
  call expect(all(out(1:3) > 0), 'numbers that are none')

  ! Cut over the last dim; ghosts around the first. u(i, j, k) is [k][j][i] in the script.
  u = -1
  do k = 1, 2
    do j = 1, 3
      do i = 1, 3
        u(i, j, k) = 100 * (2 * rank + k) + 10 * j + i
      end do
    end do
  end do
  call mh_field(session, 'u', u, ghosts=[1, 0, 0], begin=[1, 1, 2 * rank + 1], global=[3, 3, 2 * ranks])
  call mh_call(session, 'checksum', [real(ichar('u'), real64)], out)
  wanted = 0
  do k = 1, 2 * ranks
    do j = 1, 3
      do i = 1, 3
        wanted = wanted + (100 * k + 10 * j + i) * (1.0_real64 * k + 2 * j + 3 * i)
      end do
    end do
  end do
  call expect(out(1) == wanted .and. out(2) == 3 .and. out(3) == 2 * ranks .and. out(4) == 3, 'the field of rank 3')
  call mh_call(session, 'add', [real(ichar('u'), real64), 0.5_real64])
  call expect(u(1, 1, 1) == 100 * (2 * rank + 1) + 11.5_real64 .and. all(u(0, :, :) == -1) .and. all(u(4, :, :) == -1), &
    'the array was written in place')

  s = 1.5
  call mh_field(session, 's', s, begin=[4 * rank + 1])
  call mh_call(session, 'add', [real(ichar('s'), real64), 1.0_real64])
  call expect(all(s == 2.5), 'single precision')
  n = 7
  call mh_field(session, 'n', n, begin=[1, 2 * rank + 1])
  call mh_call(session, 'add', [real(ichar('n'), real64), 2.0_real64])
  call expect(all(n == 9), 'integers')

  ! Two boxes a rank, one above the other, of which the lower has ghosts: a field of 5 x 2 ranks in no grid.
  lower = -1
  do j = 1, 2
    upper(:, j) = [(10 * (2 * rank + j) + i, i = 1, 3)]
    lower(1:2, j) = [(10 * (2 * rank + j) + i, i = 4, 5)]
  end do
  call mh_add_box(boxes, upper, begin=[1, 2 * rank + 1])
  call mh_add_box(boxes, lower, ghosts=[1], begin=[4, 2 * rank + 1], stat=stat)
  call expect(stat == MH_USAGE .and. mh_error() == 'mh_add_box: ghosts has 1 numbers, the array is of rank 2', &
    'a box with a short list')
  call mh_add_box(boxes, lower, ghosts=[1, 0], begin=[4, 2 * rank + 1])
  call mh_boxes(session, 'b', boxes)
  call mh_call(session, 'checksum', [real(ichar('b'), real64)], out)
  wanted = 0
  do j = 1, 2 * ranks
    do i = 1, 5
      wanted = wanted + (10 * j + i) * (1.0_real64 * j + 2 * i)
    end do
  end do
  call expect(out(1) == wanted .and. out(3) == 2 * ranks .and. out(4) == 5, 'the field in boxes')
  call mh_call(session, 'add', [real(ichar('b'), real64), 0.5_real64])
  call expect(lower(2, 1) == 10 * (2 * rank + 1) + 5.5_real64 .and. all(lower(0, :) == -1) .and. all(lower(3, :) == -1), &
    'the boxes were written')
  call mh_boxes(session, 'b', boxes, stat)
  call expect(stat == MH_USAGE .and. index(mh_error(), 'no rank has any') > 0, 'a list is taken once')

  ! An array of no numbers, whose elements have no length.
  call mh_field(session, 'w', words, stat=stat)
  call expect(stat == MH_USAGE .and. &
    index(mh_error(), "mh_field: field 'w': the array is of a type that none of") > 0, 'words of no length')

  ! A rank without cells, and texts without letters.
  if (rank == ranks - 1 .and. ranks > 1) then
    allocate(cells(0, 0))
  else
    allocate(cells(4, 2), source=1.5_real64)
  end if
  call mh_field(session, 'e', cells, begin=[1, merge(2 * rank + 1, 1, size(cells) > 0)])
  call mh_call(session, 'checksum', [real(ichar('e'), real64)], out)
  call expect(out(3) == 2 * max(1, ranks - 1) .and. out(4) == 4, 'a rank without cells')
  call mh_call(session, 'add', [real(ichar('e'), real64), 1.0_real64])
  call expect(all(cells == 2.5), 'the others have theirs')
  call mh_unregister(session, 'e')
  call mh_field(session, '', s, begin=[4 * rank + 1], stat=stat)
  call expect(stat == MH_USAGE .and. index(mh_error(), 'mh_field: no name') > 0, 'no name')
  call mh_call(session, '', stat=stat)
  call expect(stat == MH_USAGE .and. index(mh_error(), "the script has no function ''") > 0, 'no function')
  call mh_report(session, report(1:0), stat=stat)
  call expect(stat == MH_USAGE .and. index(mh_error(), 'does not fit') > 0, 'no room')
  call mh_load(session, '', stat)
  call expect(stat /= MH_OK, 'no path')
  call mh_open(unused, '', MPI_COMM_WORLD, settings='', stat=stat)
  call expect(stat == MH_USAGE .and. index(mh_error(), 'cannot read the script') > 0, 'no script')

  call mh_report(session, report)
  call expect(index(report, 'field u') > 0 .and. index(report, 'field s') > 0, 'the report')
  call mh_field(session, 'v', u, ghosts=[1, 0], stat=stat)
  call expect(stat == MH_USAGE .and. mh_error() == &
    "mh_field: field 'v': ghosts has 2 numbers, the array is of rank 3", 'a list too short')
  call mh_call(session, 'half', [3.0_real64], out(1:1), stat)
  call expect(stat == MH_OK .and. out(1) == 1.5_real64 .and. mh_error() == '', 'no error is left over')
  call mh_call_begin(session, 'half', [9.0_real64])
  call mh_call_end(session, out(1:1))
  call expect(out(1) == 4.5_real64, 'a call beside the program')
  call mh_field(session, 'u', u, ghosts=[1, 0, 0], begin=[1, 1, 2 * rank + 1], ghosts_filled=.true.)
  call mh_report(session, report)
  call expect(index(report, 'ghosts filled') > 0, 'ghosts are filled')
  call mh_call(session, 'trian', stat=stat)
  call expect(stat == MH_USAGE .and. index(mh_error(), "did you mean 'train'?") > 0, 'a missing function')
  call mh_unregister(session, 'u')
  call mh_call(session, 'train', stat=stat)
  call expect(stat == MH_SCRIPT .and. index(mh_error(), "no field 'u' was registered") > 0, 'an unregistered field')
  call mh_sync(session)
  call mh_call(session, 'fails', stat=stat)
  call expect(stat == MH_SCRIPT, 'an error of the script')
  call ieee_get_halting_mode(ieee_overflow, halts)
  call expect(halts, 'the program stops at overflows again')
  if (command_argument_count() > 1) call mh_call(session, 'fails')
  call mh_close(session)
  call MPI_Finalize(error)

contains

  subroutine expect(condition, what)
    logical, intent(in) :: condition
    character(*), intent(in) :: what

    if (.not. condition) error stop 'not so: ' // what // '; ' // mh_error()
  end subroutine expect

end program consumer
