! SPDX-License-Identifier: Apache-2.0
! A solver whose source term is a U-Net of PyTorch: mpirun -n 3 pretrained_fortran unet.lua "model=unet.pt2 output=u.pt"
program solver
  use mpi_f08
  use moonhalo
  use, intrinsic :: iso_fortran_env, only: real64
  implicit none
  integer, parameter :: columns = 36, rows = 44, steps = 3
  type(mh_session) :: session
  real(real64), allocatable, target, asynchronous :: u(:, :), q(:, :)
  character(1000) :: script, settings
  integer :: rank, ranks, first, last, i, j, step

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  first = rows * rank * (rank + 1) / (ranks * (ranks + 1)) + 1  ! each rank has more rows than the rank before
  last = rows * (rank + 1) * (rank + 2) / (ranks * (ranks + 1))
  allocate(u(0:columns + 1, first - 1:last + 1), source=0.0_real64)  ! with ghost cells
  allocate(q(columns, first:last), source=0.0_real64)
  do j = first, last
    do i = 1, columns
      u(i, j) = sin(0.3_real64 * j) * cos(0.2_real64 * i)
    end do
  end do

  call get_command_argument(1, script)
  call get_command_argument(2, settings)
  call mh_open(session, trim(script), MPI_COMM_WORLD, settings=trim(settings))
  call mh_field(session, 'u', u, ghosts=[1, 1], begin=[1, first])
  call mh_field(session, 'q', q, begin=[1, first])
  do step = 1, steps
    call mh_call(session, 'infer')                              ! q = net(u), in place
    u(1:columns, first:last) = u(1:columns, first:last) + 0.1_real64 * q
  end do
  call mh_call(session, 'save')
  call mh_close(session)
  call MPI_Finalize()
end program solver
