! SPDX-License-Identifier: Apache-2.0
! A program in Fortran whose messages are functions of its own (X15):  mpirun -n N fortran_transport SCRIPT
! Moonhalo is given no communicator; the functions, here over this program's MPI, are all that it has of the ranks.
module own_messages
  use mpi
  use moonhalo
  use, intrinsic :: iso_c_binding
  implicit none
  integer :: comm, sent = 0, unfinished = 0

contains

  function filled() result(transport)
    type(mh_transport) :: transport
    integer :: level, error

    call MPI_Query_thread(level, error)
    transport%size = c_sizeof(transport)
    transport%rank = c_funloc(own_rank)
    transport%ranks = c_funloc(own_ranks)
    transport%isend = c_funloc(own_isend)
    transport%irecv = c_funloc(own_irecv)
    transport%test = c_funloc(own_test)
    transport%cancel = c_funloc(own_cancel)
    transport%any_thread = merge(1, 0, level == MPI_THREAD_MULTIPLE)
  end function filled

  integer(c_int) function own_rank(context) bind(c)
    type(c_ptr), value :: context
    integer :: rank, error

    call MPI_Comm_rank(comm, rank, error)
    own_rank = rank
  end function own_rank

  integer(c_int) function own_ranks(context) bind(c)
    type(c_ptr), value :: context
    integer :: ranks, error

    call MPI_Comm_size(comm, ranks, error)
    own_ranks = ranks
  end function own_ranks

  integer(c_int) function own_isend(context, data, bytes, peer, tag, request) bind(c)
    type(c_ptr), value :: context, data
    integer(c_size_t), value :: bytes
    integer(c_int), value :: peer, tag
    type(c_ptr), intent(inout) :: request
    character(kind=c_char), pointer, contiguous :: memory(:)
    integer :: handle, error

    call c_f_pointer(data, memory, [bytes])
    call MPI_Isend(memory, int(bytes), MPI_BYTE, peer, tag, comm, handle, error)
    request = transfer(int(handle, c_intptr_t), request)
    sent = sent + 1
    unfinished = unfinished + 1
    own_isend = error
  end function own_isend

  integer(c_int) function own_irecv(context, data, bytes, peer, tag, request) bind(c)
    type(c_ptr), value :: context, data
    integer(c_size_t), value :: bytes
    integer(c_int), value :: peer, tag
    type(c_ptr), intent(inout) :: request
    character(kind=c_char), pointer, contiguous :: memory(:)
    integer :: handle, error

    call c_f_pointer(data, memory, [bytes])
    call MPI_Irecv(memory, int(bytes), MPI_BYTE, peer, tag, comm, handle, error)
    request = transfer(int(handle, c_intptr_t), request)
    unfinished = unfinished + 1
    own_irecv = error
  end function own_irecv

  integer(c_int) function own_test(context, request, done) bind(c)
    type(c_ptr), value :: context
    type(c_ptr), intent(inout) :: request
    integer(c_int), intent(out) :: done
    integer :: handle, error
    logical :: flag

    handle = int(transfer(request, 0_c_intptr_t))
    call MPI_Test(handle, flag, MPI_STATUS_IGNORE, error)
    request = transfer(int(handle, c_intptr_t), request)
    done = merge(1, 0, flag)
    unfinished = unfinished - done
    own_test = error
  end function own_test

  integer(c_int) function own_cancel(context, request) bind(c)
    type(c_ptr), value :: context
    type(c_ptr), intent(inout) :: request
    integer :: handle, error

    handle = int(transfer(request, 0_c_intptr_t))
    call MPI_Cancel(handle, error)
    if (error == MPI_SUCCESS) call MPI_Wait(handle, MPI_STATUS_IGNORE, error)
    unfinished = unfinished - 1
    own_cancel = error
  end function own_cancel

end module own_messages

program transport_consumer
  use own_messages
  implicit none
  type(mh_session) :: session
  type(mh_transport), target :: transport, empty
  real(c_double), allocatable, target, asynchronous :: u(:, :)
  real(c_double) :: out(4), wanted, loss(1), first
  character(1000) :: script
  integer, parameter :: whole(2) = [5, 13]
  integer :: error, rank, ranks, level, stat, i, j, round, columns, before

  call MPI_Init_thread(MPI_THREAD_MULTIPLE, level, error)
  comm = MPI_COMM_WORLD
  call MPI_Comm_rank(comm, rank, error)
  call MPI_Comm_size(comm, ranks, error)
  call get_command_argument(1, script)

  empty = filled()
  empty%test = c_null_funptr
  call mh_open(session, trim(script), transport=c_loc(empty), stat=stat)
  call expect(stat == MH_USAGE .and. index(mh_error(), 'a transport without all of its functions') > 0, 'a missing function')
  empty = filled()
  empty%size = 8
  call mh_open(session, trim(script), transport=c_loc(empty), stat=stat)
  call expect(stat == MH_USAGE .and. index(mh_error(), 'a transport of an unknown size') > 0, 'another size')

  ! The last rank has the columns that are left over; a ghost cell lies all round.
  columns = whole(2) / ranks
  before = columns * rank
  if (rank == ranks - 1) columns = whole(2) - before
  allocate(u(0:whole(1) + 1, 0:columns + 1))
  transport = filled()
  do round = 1, 2
    call MPI_Comm_dup(MPI_COMM_WORLD, comm, error)  ! for each session, because a failed one leaves messages behind
    call mh_open(session, trim(script), transport=c_loc(transport), settings='lr=0.1', timeout=30.0_c_double)
    u = -1
    wanted = 0
    do j = 1, whole(2)
      do i = 1, whole(1)
        wanted = wanted + (10 * j + i) * (1.0_c_double * j + 2 * i)
        if (j > before .and. j <= before + columns) u(i, j - before) = 10 * j + i
      end do
    end do
    call mh_field(session, 'u', u, ghosts=[1, 1], begin=[1, before + 1], global=whole)
    call mh_call(session, 'checksum', [real(ichar('u'), c_double)], out)
    call expect(out(1) == wanted .and. out(3) == whole(2) .and. out(4) == whole(1), 'the field')
    call mh_call(session, 'add', [real(ichar('u'), c_double), 0.5_c_double])
    call expect(u(1, 1) == 10 * (before + 1) + 1.5_c_double .and. all(u(0, :) == -1) .and. all(u(:, columns + 1) == -1), &
      'in place')
    call mh_call(session, 'train', out=loss)
    first = loss(1)
    do i = 1, 20
      call mh_call(session, 'train', out=loss)
    end do
    call expect(loss(1) < 0.9 * first, 'trained')
    if (round == 2) then
      call mh_call(session, 'fails_on_rank_1', stat=stat)
      call expect(stat == merge(MH_SCRIPT, MH_OK, ranks > 1), 'one rank fails, all return')
      if (ranks > 1) call expect(index(mh_error(), 'rank 1 alone has failed') > 0, 'its message')
    end if
    call mh_close(session)
    if (round == 1) call expect(unfinished == 0, 'every request was finished or withdrawn')
    call MPI_Comm_free(comm, error)
  end do
  call expect((sent > 0) .eqv. (ranks > 1), 'messages went by these functions')
  call MPI_Allreduce(MPI_IN_PLACE, sent, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
  if (rank == 0) print '(i0, a, i0, a, es20.12)', ranks, ' ranks, messages: ', sent, ', loss', loss
  call MPI_Finalize(error)

contains

  subroutine expect(condition, what)
    logical, intent(in) :: condition
    character(*), intent(in) :: what

    if (.not. condition) error stop 'not so: ' // what // '; ' // mh_error()
  end subroutine expect

end program transport_consumer
