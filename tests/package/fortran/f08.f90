! SPDX-License-Identifier: Apache-2.0
! A program with mpi_f08, whose communicator is given as it is and as functions of its MPI (X15):  mpirun -n N fortran_f08 SCRIPT
program f08_consumer
  use mpi_f08
  use moonhalo
  use, intrinsic :: iso_c_binding
  use, intrinsic :: ieee_arithmetic, only: ieee_value, ieee_positive_inf
  implicit none
  type(mh_session) :: session
  type(mh_transport), target :: transport
  real(c_double), target, asynchronous :: u(4, 2)
  real(c_double) :: out(4), sums(2)
  character(1000) :: script
  type(MPI_Comm) :: comm
  integer :: rank, ranks, round, level, stat

  call MPI_Init_thread(MPI_THREAD_MULTIPLE, level)
  call MPI_Comm_dup(MPI_COMM_WORLD, comm)
  call MPI_Comm_rank(comm, rank)
  call MPI_Comm_size(comm, ranks)
  call get_command_argument(1, script)
  do round = 1, 2
    if (round == 1) then
      call mh_open(session, trim(script), comm)
    else
      stat = mh_mpi_transport(comm%MPI_VAL, transport)
      if (stat /= 0) error stop 'no functions of MPI'
      call mh_open(session, trim(script), transport=c_loc(transport), check_finite=.true.)
    end if
    u = 10 * (rank + 1)
    call mh_field(session, 'u', u, begin=[1, 2 * rank + 1])
    call mh_call(session, 'checksum', [real(ichar('u'), c_double)], out)
    sums(round) = out(1)
    if (out(3) /= 2 * ranks) error stop 'another number of columns'
    u(3, 2) = ieee_value(u(3, 2), ieee_positive_inf)
    call mh_call(session, 'checksum', [real(ichar('u'), c_double)], out, stat)
    if (stat /= merge(MH_OK, MH_USAGE, round == 1)) error stop 'infinity is an error with check_finite alone'
    call mh_close(session)
  end do
  stat = mh_mpi_transport_free(transport)
  if (sums(1) /= sums(2) .or. sums(1) <= 0) error stop 'the two ways differ'
  call MPI_Finalize()
end program f08_consumer
