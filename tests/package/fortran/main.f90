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

  call check_components
  call check_sections

  ! An array of no numbers, whose elements have no length.
  call mh_field_at(session, 'w', words, words(1), stat=stat)
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
  call expect(stat == MH_USAGE .and. index(mh_error(), 'does not fit') > 0, 'no space')
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

  !> Components of arrays of derived type are fields in place: whole ones, sections, through a pointer, and in boxes.
  subroutine check_components
    type :: cell
      real(real64) :: p = 0, q = -1
      real(real32) :: r = 1, v(2) = [2, 3]
    end type cell
    type :: uneven
      real(real32) :: before = 1
      complex(real32) :: value = 2
    end type uneven
    type(cell), target, asynchronous :: cells(5, 2)
    type(cell), allocatable, target, asynchronous :: more(:)
    type(uneven), target, asynchronous :: odd(3)
    real(real64), pointer, asynchronous :: q(:, :)
    real(real64) :: total
    integer :: a, b

    total = 0
    do b = 1, 2 * ranks
      do a = 1, 5
        if (b > 2 * rank .and. b <= 2 * rank + 2) cells(a, b - 2 * rank)%q = 10 * b + a
        total = total + (10 * b + a) * (1.0_real64 * b + 2 * a)
      end do
    end do
    call mh_field_at(session, 'p', cells, cells(1, 1)%q, begin=[1, 2 * rank + 1])
    call mh_call(session, 'checksum', [real(ichar('p'), real64)], out)
    call expect(out(1) == total, 'the script reads a component')
    call mh_call(session, 'add', [real(ichar('p'), real64), 0.5_real64])
    call expect(cells(3, 2)%q == 10 * (2 * rank + 2) + 3.5_real64 .and. all(cells%p == 0) .and. all(cells%r == 1), &
      'the script writes a component, and no other')
    call mh_field_at(session, 'p', cells, cells(1, 1)%v(2), begin=[1, 2 * rank + 1])
    call mh_call(session, 'add', [real(ichar('p'), real64), 1.0_real64])
    call expect(all(cells%v(2) == 4) .and. all(cells%v(1) == 2), 'an element of a component')
    call mh_field_at(session, 'p', cells(1:5:2, :), cells(1, 1)%r, begin=[1, 2 * rank + 1])
    call mh_call(session, 'add', [real(ichar('p'), real64), 2.0_real64])
    call expect(all(cells(1:5:2, :)%r == 3) .and. all(cells(2:4:2, :)%r == 1), 'a section of a component')
    allocate(more(3))
    call mh_add_box_at(boxes, more, more(1)%q, begin=[3 * rank + 1])
    call mh_boxes(session, 'p', boxes)
    call mh_call(session, 'add', [real(ichar('p'), real64), 3.0_real64])
    call expect(all(more%q == 2) .and. all(more%p == 0), 'a box that is a component')
    call mh_unregister(session, 'p')
    call mh_field(session, 'p', cells%q, begin=[1, 2 * rank + 1], stat=stat)
    call expect(stat == MH_USAGE .and. index(mh_error(), "mh_field: field 'p': the array's elements do not follow one another") &
      == 1 .and. index(mh_error(), 'mh_field_at(session, name, cells, cells(1, 1)%p)') > 0, 'a component without its first element')
    q => cells%q
    call mh_field(session, 'p', q, begin=[1, 2 * rank + 1], stat=stat)
    call refused('32 bytes from one of 8 bytes to the next', 'a component through a pointer')
    call mh_add_box(boxes, more%q, stat=stat)
    call refused("mh_add_box: the array's elements do not follow", 'such a box')
    call mh_field_at(session, 'p', cells, cells(2, 1)%q, begin=[1, 2 * rank + 1], stat=stat)
    call refused('`first` is not part of the first element', 'another element')
    call mh_field_at(session, 'p', cells, cells(1, 2)%q, begin=[1, 2 * rank + 1], stat=stat)
    call refused('`first` is not part of the first element', 'one of another column')
    call mh_field_at(session, 'p', cells%q, cells(1, 1)%q, begin=[1, 2 * rank + 1], stat=stat)
    call refused('the compiler has made a copy', 'a copy of a component')
    call mh_field_at(session, 'p', u, u(1, 1, 1), begin=[1, 1, 2 * rank + 1], stat=stat)
    call refused('`first` is not part of the first element', 'the second of a whole array')
    call mh_field_at(session, 'p', odd, odd(1)%value, begin=[3 * rank + 1], stat=stat)
    call refused('bytes apart along dim 1', 'a component between addresses')
  end subroutine check_components

  !> Sections and parts of complex numbers are fields in place, in a subroutine that was given the array too.
  subroutine check_sections
    real(real64), target, asynchronous :: whole(20, 8)
    complex(real64), target, asynchronous :: z(4)

    whole = 0
    call mh_field(session, 'p', whole(3:12, 2:5), begin=[1, 4 * rank + 1])
    call mh_call(session, 'add', [real(ichar('p'), real64), 1.0_real64])
    call expect(count(whole == 1) == 40 .and. all(whole(3:12, 2:5) == 1), 'a section')
    whole = 0
    call show(whole(1:20:2, :))
    call mh_call(session, 'add', [real(ichar('p'), real64), 1.0_real64])
    call expect(count(whole == 1) == 80 .and. all(whole(1:20:2, :) == 1), 'a section that a subroutine was given')
    z = (1, 2)
    call mh_field_at(session, 'p', z, z(1)%im, begin=[4 * rank + 1])
    call mh_call(session, 'add', [real(ichar('p'), real64), 1.0_real64])
    call expect(all(z == (1, 3)), 'an imaginary part')
    call mh_field_at(session, 'p', whole(20:1:-1, 1), whole(20, 1), begin=[20 * rank + 1], stat=stat)
    call refused('stride', 'a section backwards')
    call mh_unregister(session, 'p')
  end subroutine check_sections

  subroutine show(section)
    real(real64), intent(inout), target, asynchronous :: section(:, :)

    call mh_field_at(session, 'p', section, section(1, 1), begin=[1, 8 * rank + 1])
  end subroutine show

  subroutine refused(text, what)
    character(*), intent(in) :: text, what

    call expect(stat == MH_USAGE .and. index(mh_error(), text) > 0, what)
  end subroutine refused

  subroutine expect(condition, what)
    logical, intent(in) :: condition
    character(*), intent(in) :: what

    if (.not. condition) error stop 'not so: ' // what // '; ' // mh_error()
  end subroutine expect

end program consumer
