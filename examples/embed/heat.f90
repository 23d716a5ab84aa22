! SPDX-License-Identifier: Apache-2.0
! heat.c in Fortran: a solver of the heat equation with an MPI of its own, uneven 2-D blocks and one ghost cell on every
! side, hands its array over once, in place; a network trains on it in situ and then takes the solver's place.
!
!     mpirun -n 4 heat_fortran surrogate.lua [LEAPS]
module heat_solver
  use mpi_f08
  use, intrinsic :: iso_fortran_env, only: real64
  implicit none
  integer, parameter :: whole(2) = [30, 37]  ! columns are fastest in memory, as in heat.c

  type :: solver
    type(MPI_Comm) :: comm                    ! a grid of ranks
    integer :: rank, begin(2), owned(2)
    type(MPI_Datatype) :: row
    real(real64), allocatable :: next(:, :)
  end type solver

contains

  function start_solver() result(s)
    type(solver) :: s
    integer :: ranks, blocks(2), place(2), d

    call MPI_Comm_size(MPI_COMM_WORLD, ranks)
    blocks = 0
    call MPI_Dims_create(ranks, 2, blocks)
    call MPI_Cart_create(MPI_COMM_WORLD, 2, blocks, [.false., .false.], .true., s%comm)
    call MPI_Comm_rank(s%comm, s%rank)
    call MPI_Cart_coords(s%comm, s%rank, 2, place)
    do d = 1, 2  ! the first block has twice its share
      s%begin(d) = merge(0, (place(d) + 1) * whole(d) / (blocks(d) + 1), place(d) == 0) + 1
      s%owned(d) = (place(d) + 2) * whole(d) / (blocks(d) + 1) - s%begin(d) + 1
    end do
    allocate(s%next(s%owned(1), s%owned(2)))
    call MPI_Type_vector(s%owned(2), 1, s%owned(1) + 2, MPI_DOUBLE_PRECISION, s%row)
    call MPI_Type_commit(s%row)
  end function start_solver

  !> A smooth field, the same for any number of ranks.
  subroutine set_initial(s, u, seed)
    type(solver), intent(in) :: s
    real(real64), intent(inout) :: u(0:, 0:)
    integer, intent(in) :: seed
    real(real64), parameter :: pi = acos(-1.0_real64)
    real(real64) :: phase, value
    integer :: i, j, wave

    do i = 1, s%owned(2)
      do j = 1, s%owned(1)
        value = 0
        do wave = 1, 6
          phase = sin(12.9898_real64 * wave + 78.233_real64 * seed) * 43758.5453_real64
          value = value + (phase - floor(phase) - 0.5_real64) * sin(pi * wave * (s%begin(2) + i - 1) / (whole(2) + 1)) &
            * sin(pi * (1 + mod(wave * 5 + seed, 7)) * (s%begin(1) + j - 1) / (whole(1) + 1))
        end do
        u(j, i) = value
      end do
    end do
  end subroutine set_initial

  subroutine exchange_ghosts(s, u)
    type(solver), intent(in) :: s
    real(real64), intent(inout), asynchronous :: u(0:, 0:)
    integer :: low, high, w, h

    w = s%owned(1)
    h = s%owned(2)
    call MPI_Cart_shift(s%comm, 1, 1, low, high)
    call MPI_Sendrecv(u(1, 1), w, MPI_DOUBLE_PRECISION, low, 0, u(1, h + 1), w, MPI_DOUBLE_PRECISION, high, 0, s%comm, &
      MPI_STATUS_IGNORE)
    call MPI_Sendrecv(u(1, h), w, MPI_DOUBLE_PRECISION, high, 0, u(1, 0), w, MPI_DOUBLE_PRECISION, low, 0, s%comm, &
      MPI_STATUS_IGNORE)
    call MPI_Cart_shift(s%comm, 0, 1, low, high)
    call MPI_Sendrecv(u(1, 1), 1, s%row, low, 0, u(w + 1, 1), 1, s%row, high, 0, s%comm, MPI_STATUS_IGNORE)
    call MPI_Sendrecv(u(w, 1), 1, s%row, high, 0, u(0, 1), 1, s%row, low, 0, s%comm, MPI_STATUS_IGNORE)
  end subroutine exchange_ghosts

  !> One time step of dt = 0.2 (grid spacing 1; stable below 0.25).
  subroutine step(s, u)
    type(solver), intent(inout) :: s
    real(real64), intent(inout), asynchronous :: u(0:, 0:)
    integer :: i, j

    call exchange_ghosts(s, u)
    do i = 1, s%owned(2)
      do j = 1, s%owned(1)
        s%next(j, i) = u(j, i) + 0.2_real64 * (u(j, i - 1) + u(j, i + 1) + u(j - 1, i) + u(j + 1, i) - 4 * u(j, i))
      end do
    end do
    u(1:s%owned(1), 1:s%owned(2)) = s%next
  end subroutine step

end module heat_solver

program heat
  use heat_solver
  use moonhalo
  use, intrinsic :: iso_c_binding, only: c_loc
  implicit none
  integer, parameter :: used = 10
  type(solver) :: s
  type(mh_session) :: session
  real(real64), allocatable, target, asynchronous :: u(:, :)
  real(real64), allocatable :: truth(:, :)
  type(mh_transport), target :: transport
  real(real64) :: loss(1), norms(2), change
  character(1000) :: script, number
  integer :: leap, leaps, i, stat

  call MPI_Init()
  s = start_solver()
  script = 'surrogate.lua'
  if (command_argument_count() > 0) call get_command_argument(1, script)
  leaps = 1200
  if (command_argument_count() > 1) then
    call get_command_argument(2, number)
    read (number, *) leaps
  end if
  allocate(u(0:s%owned(1) + 1, 0:s%owned(2) + 1), source=0.0_real64)
  call mh_open(session, trim(script), s%comm, settings='lr=1e-2', stat=stat)
  if (stat == MH_UNSUPPORTED) then  ! another MPI than the one that Moonhalo was built with
    if (mh_mpi_transport(s%comm%MPI_VAL, transport) /= 0) error stop 'no communicator for the session'
    call mh_open(session, trim(script), transport=c_loc(transport), settings='lr=1e-2', stat=stat)
  end if
  if (stat /= MH_OK) error stop mh_error()
  call mh_field(session, 'u', u, ghosts=[1, 1], begin=s%begin, global=whole)

  ! In situ: at every leap of two steps the network sees where the solver was and where it got to.
  do leap = 0, leaps - 1
    if (mod(leap, 8) == 0) call set_initial(s, u, leap / 8)
    call mh_call(session, 'remember')
    call step(s, u)
    call step(s, u)
    call mh_call(session, 'learn', out=loss)
  end do

  ! Use: one field advanced by the solver, then the same by the network in the solver's array.
  call set_initial(s, u, 1000)
  call mh_call(session, 'remember')
  do i = 1, 2 * used
    call step(s, u)
  end do
  call mh_call(session, 'measure', out=norms)
  change = norms(2)
  allocate(truth, source=u)
  call set_initial(s, u, 1000)
  do i = 1, used
    call mh_call(session, 'leap')
  end do
  call mh_call(session, 'remember')
  u(:, :) = truth
  call mh_call(session, 'measure', out=norms)

  if (s%rank == 0) then
    print '(a, es23.16)', 'final training loss               ', loss
    print '(a, es23.16)', 'the field changed by (rms)        ', change
    print '(a, es23.16)', 'network against solver (rms)      ', norms(2)
  end if
  call mh_close(session)
  i = mh_mpi_transport_free(transport)
  call MPI_Finalize()
end program heat
