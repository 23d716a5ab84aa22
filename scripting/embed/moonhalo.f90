! SPDX-License-Identifier: Apache-2.0
!> Moonhalo inside a simulation code, from Fortran: moonhalo_c.h with arrays of any rank and kind, in place.
!>
!>     type(mh_session) :: session
!>     call mh_open(session, 'surrogate.lua', comm)                  ! integer or type(MPI_Comm); without it one rank
!>     call mh_field(session, 'u', u, ghosts=[1, 1], begin=[i0, j0]) ! once: the script sees mh.host.fields.u
!>     call mh_call(session, 'train', [dt], out)                     ! function train(dt) ... return loss end
!>
!> With stat= a subroutine returns the status of moonhalo_c.h, and mh_error() says more; without it an error ends the
!> program by error stop with that message, told by one rank where it is that of all. Fields see their dims reversed in the script: u(i, j) is u[j][i] there.
!> Give whole arrays, not sections and not components of derived types: compilers copy those into temporaries, which end
!> with the call.
module moonhalo
  use, intrinsic :: iso_c_binding
  implicit none
  private
  public :: mh_session, mh_box_list, mh_transport, mh_open, mh_close, mh_field, mh_unregister, mh_add_box, mh_boxes, mh_call, &
    mh_call_begin, mh_call_end, mh_save, mh_load, mh_sync, mh_report, mh_error, mh_mpi_transport, mh_mpi_transport_free

  integer, parameter, public :: MH_OK = 0, MH_SCRIPT = 1, MH_USAGE = 2, MH_RANK_LOST = 3, MH_MEMORY = 4, &
    MH_UNSUPPORTED = 5, MH_INTERNAL = 6

  character(:), allocatable :: problem  ! what is wrong with this side of a call

  type :: mh_session
    private
    type(c_ptr) :: handle = c_null_ptr
  end type mh_session

  !> Boxes on their way to mh_boxes.
  type :: mh_box_list
    private
    type(c_ptr) :: handle = c_null_ptr
  end type mh_box_list

  !> Messages by functions of the program's, in place of a communicator: moonhalo_c.h says what each must do. They are
  !> functions with bind(c), given by c_funloc.
  type, bind(c) :: mh_transport
    integer(c_size_t) :: size = 0                    !< c_sizeof of a variable of this type
    type(c_ptr) :: context = c_null_ptr              !< given to each function
    type(c_funptr) :: rank = c_null_funptr, ranks = c_null_funptr
    type(c_funptr) :: isend = c_null_funptr, irecv = c_null_funptr, test = c_null_funptr, cancel = c_null_funptr
    integer(c_int) :: any_thread = 0                 !< 1: other threads may talk meanwhile
  end type mh_transport

  !> Functions of the program's MPI, for one that Moonhalo was not built with: they return 0 for success. `comm`: an
  !> integer handle; of mpi_f08 comm%MPI_VAL. It is duplicated. Free a transport after its session has been closed. Both
  !> are collective, and linked by moonhalo::fortran_mpi, whose C file the program's MPI compiles.
  interface
    integer(c_int) function mh_mpi_transport(comm, transport) bind(c, name='moonhalo_mpi_transport')
      import
      integer(c_int), intent(in) :: comm
      type(mh_transport), intent(out) :: transport
    end function mh_mpi_transport
    integer(c_int) function mh_mpi_transport_free(transport) bind(c, name='moonhalo_mpi_transport_free')
      import
      type(mh_transport), intent(inout) :: transport
    end function mh_mpi_transport_free
  end interface

  interface
    integer(c_int) function c_open(script, comm, transport, settings, timeout, budget, session) bind(c, name='moonhalo_open')
      import
      character(kind=c_char), intent(in) :: script(*)
      type(c_ptr), value :: comm, transport, settings
      real(c_double), value :: timeout, budget
      type(c_ptr), intent(out) :: session
    end function c_open
    integer(c_int) function c_field(session, name, array, ghost_low, ghost_high, begin, global, filled) &
        bind(c, name='moonhalo_field_of_array')
      import
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: name(*)
      type(*), dimension(..), intent(inout), target, asynchronous :: array
      integer(c_int64_t), intent(in) :: ghost_low(*), ghost_high(*), begin(*), global(*)
      integer(c_int), value :: filled
    end function c_field
    subroutine c_problem(array, text) bind(c, name='moonhalo_problem_of_array')
      import
      type(*), dimension(..), intent(in), target, asynchronous :: array
      character(kind=c_char), intent(out) :: text(200)
    end subroutine c_problem
    integer(c_int) function c_refuse(session, call, problem) bind(c, name='mh_refuse')
      import
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: call(*), problem(*)
    end function c_refuse
    type(c_ptr) function c_add_box(list, array, ghost_low, ghost_high, begin, global) bind(c, name='moonhalo_add_box')
      import
      type(c_ptr), value :: list
      type(*), dimension(..), intent(inout), target, asynchronous :: array
      integer(c_int64_t), intent(in) :: ghost_low(*), ghost_high(*), begin(*), global(*)
    end function c_add_box
    integer(c_int) function c_boxes(session, name, list) bind(c, name='moonhalo_boxes_of_list')
      import
      type(c_ptr), value :: session, list
      character(kind=c_char), intent(in) :: name(*)
    end function c_boxes
    integer(c_int) function c_register(session, name, block) bind(c, name='mh_field')
      import
      type(c_ptr), value :: session, block
      character(kind=c_char), intent(in) :: name(*)
    end function c_register
    integer(c_int) function c_call(session, function, n, in, m, out) bind(c, name='mh_call')
      import
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: function(*)
      integer(c_int), value :: n, m
      real(c_double), intent(in) :: in(*)
      real(c_double), intent(inout) :: out(*)
    end function c_call
    integer(c_int) function c_begin(session, function, n, in) bind(c, name='mh_call_begin')
      import
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: function(*)
      integer(c_int), value :: n
      real(c_double), intent(in) :: in(*)
    end function c_begin
    integer(c_int) function c_end(session, m, out) bind(c, name='mh_call_end')
      import
      type(c_ptr), value :: session
      integer(c_int), value :: m
      real(c_double), intent(inout) :: out(*)
    end function c_end
    integer(c_int) function c_save(session, path) bind(c, name='mh_save')
      import
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: path(*)
    end function c_save
    integer(c_int) function c_load(session, path) bind(c, name='mh_load')
      import
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: path(*)
    end function c_load
    integer(c_int) function c_sync(session) bind(c, name='mh_sync')
      import
      type(c_ptr), value :: session
    end function c_sync
    integer(c_int) function c_close(session) bind(c, name='mh_close')
      import
      type(c_ptr), value :: session
    end function c_close
    integer(c_int) function c_report(session, text, size) bind(c, name='mh_report')
      import
      type(c_ptr), value :: session
      character(kind=c_char), intent(out) :: text(*)
      integer(c_size_t), value :: size
    end function c_report
    type(c_ptr) function c_error() bind(c, name='mh_error')
      import
    end function c_error
    integer(c_int) function c_error_repeats() bind(c, name='mh_error_repeats')
      import
    end function c_error_repeats
    subroutine c_let_another_tell() bind(c, name='moonhalo_let_another_tell')
    end subroutine c_let_another_tell
    integer(c_size_t) function c_strlen(text) bind(c, name='strlen')
      import
      type(c_ptr), value :: text
    end function c_strlen
  end interface

contains

  !> Runs the script. Collective over `comm`: an integer handle, or a type(MPI_Comm) of mpi_f08, which holds one.
  subroutine mh_open(session, script, comm, settings, timeout, transport, stat, call_budget)
    type(mh_session), intent(out) :: session
    character(*), intent(in) :: script
    type(*), intent(in), optional, target :: comm
    character(*), intent(in), optional :: settings      !< 'lr=1e-3 width=16'
    real(c_double), intent(in), optional :: timeout     !< longest silence of a rank in seconds
    type(c_ptr), intent(in), optional :: transport      !< in place of comm: c_loc of an mh_transport, there until mh_close
    integer, intent(out), optional :: stat
    real(c_double), intent(in), optional :: call_budget !< longest time of a function of the script in seconds
    character(kind=c_char, len=:), allocatable, target :: text
    type(c_ptr) :: where_comm, where_transport, where_settings
    real(c_double) :: limit, budget

    where_comm = c_null_ptr
    if (present(comm)) where_comm = c_loc(comm)
    where_transport = c_null_ptr
    if (present(transport)) where_transport = transport
    where_settings = c_null_ptr
    if (present(settings)) then
      text = settings // c_null_char
      where_settings = c_loc(text)
    end if
    limit = 0
    if (present(timeout)) limit = timeout
    budget = 0
    if (present(call_budget)) budget = call_budget
    call finish(c_open(script // c_null_char, where_comm, where_transport, where_settings, limit, budget, session%handle), stat)
  end subroutine mh_open

  !> Ends the session; before MPI_Finalize. Collective.
  subroutine mh_close(session, stat)
    type(mh_session), intent(inout) :: session
    integer, intent(out), optional :: stat
    type(c_ptr) :: handle

    handle = session%handle
    session%handle = c_null_ptr
    call finish(c_close(handle), stat)
  end subroutine mh_close

  !> Shows the owned part of a whole array to the script. Lists have one number for each dim of the array. Collective.
  subroutine mh_field(session, name, array, ghosts, ghosts_high, begin, global, ghosts_filled, stat)
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: name
    type(*), dimension(..), intent(inout), target, asynchronous :: array
    integer, intent(in), optional :: ghosts(:)       !< rows before the owned ones, and after them unless
    integer, intent(in), optional :: ghosts_high(:)  !< these are given
    integer, intent(in), optional :: begin(:)        !< index in the whole field of the first owned row, from 1
    integer, intent(in), optional :: global(:)       !< extents of the whole field
    logical, intent(in), optional :: ghosts_filled   !< at every mh_call, corners too: read in place of messages
    integer, intent(out), optional :: stat
    integer(c_int64_t) :: low(15), high(15), first(15), whole(15)
    integer(c_int) :: filled

    problem = problem_of(array)
    if (problem == '') call take_lists(rank(array), ghosts, ghosts_high, begin, global, low, high, first, whole)
    filled = 0
    if (present(ghosts_filled)) filled = merge(1, 0, ghosts_filled)
    if (problem == '') then
      call finish(c_field(session%handle, name // c_null_char, array, low, high, first, whole, filled), stat)
    else
      call finish(c_refuse(session%handle, 'mh_field' // c_null_char, "field '" // name // "': " // problem // c_null_char), stat)
    end if
  end subroutine mh_field

  !> One more box of a field that is held in boxes, a whole array. Lists as for mh_field. Not collective.
  subroutine mh_add_box(boxes, array, ghosts, ghosts_high, begin, global, stat)
    type(mh_box_list), intent(inout) :: boxes
    type(*), dimension(..), intent(inout), target, asynchronous :: array
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    integer, intent(out), optional :: stat
    integer(c_int64_t) :: low(15), high(15), first(15), whole(15)
    type(c_ptr) :: longer

    problem = problem_of(array)
    if (problem == '') call take_lists(rank(array), ghosts, ghosts_high, begin, global, low, high, first, whole)
    if (problem == '') then
      longer = c_add_box(boxes%handle, array, low, high, first, whole)
      if (c_associated(longer)) then
        boxes%handle = longer
        if (present(stat)) stat = MH_OK
        return
      end if
      problem = 'no memory for another box'
    end if
    problem = 'mh_add_box: ' // problem
    if (.not. present(stat)) error stop 'moonhalo: ' // problem
    stat = MH_USAGE
  end subroutine mh_add_box

  !> Shows a field in boxes, which may be none on this rank, to the script; copied at each mh_call. Empties the list.
  !> Collective.
  subroutine mh_boxes(session, name, boxes, stat)
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: name
    type(mh_box_list), intent(inout) :: boxes
    integer, intent(out), optional :: stat
    type(c_ptr) :: list

    list = boxes%handle
    boxes%handle = c_null_ptr
    call finish(c_boxes(session%handle, name // c_null_char, list), stat)
  end subroutine mh_boxes

  !> Takes the name from the script; before the array is deallocated. Collective.
  subroutine mh_unregister(session, name, stat)
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: name
    integer, intent(out), optional :: stat

    call finish(c_register(session%handle, name // c_null_char, c_null_ptr), stat)
  end subroutine mh_unregister

  !> Calls a function of the script with the numbers `in`, and takes as many as `out` has. Collective.
  subroutine mh_call(session, function, in, out, stat)
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: function
    real(c_double), intent(in), optional :: in(:)
    real(c_double), intent(out), optional :: out(:)
    integer, intent(out), optional :: stat
    real(c_double), allocatable :: given(:), taken(:)
    integer(c_int) :: status

    allocate(given(0))
    if (present(in)) given = in
    if (present(out)) then
      allocate(taken(size(out)), source=0.0_c_double)
    else
      allocate(taken(0))
    end if
    status = c_call(session%handle, function // c_null_char, size(given, kind=c_int), given, size(taken, kind=c_int), taken)
    if (present(out)) out = taken
    call finish(status, stat)
  end subroutine mh_call

  !> The same beside the solver: returns at once; the call sees the fields as they are now. Collective.
  subroutine mh_call_begin(session, function, in, stat)
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: function
    real(c_double), intent(in), optional :: in(:)
    integer, intent(out), optional :: stat
    real(c_double), allocatable :: given(:)

    allocate(given(0))
    if (present(in)) given = in
    call finish(c_begin(session%handle, function // c_null_char, size(given, kind=c_int), given), stat)
  end subroutine mh_call_begin

  !> Waits for it and takes its numbers. Collective.
  subroutine mh_call_end(session, out, stat)
    type(mh_session), intent(in) :: session
    real(c_double), intent(out), optional :: out(:)
    integer, intent(out), optional :: stat
    real(c_double), allocatable :: taken(:)
    integer(c_int) :: status

    if (present(out)) then
      allocate(taken(size(out)), source=0.0_c_double)
    else
      allocate(taken(0))
    end if
    status = c_end(session%handle, size(taken, kind=c_int), taken)
    if (present(out)) out = taken
    call finish(status, stat)
  end subroutine mh_call_end

  !> Saves what the script names in mh.host.state. Collective.
  subroutine mh_save(session, path, stat)
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: path
    integer, intent(out), optional :: stat

    call finish(c_save(session%handle, path // c_null_char), stat)
  end subroutine mh_save

  !> Restores it. Collective.
  subroutine mh_load(session, path, stat)
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: path
    integer, intent(out), optional :: stat

    call finish(c_load(session%handle, path // c_null_char), stat)
  end subroutine mh_load

  !> Returns when all ranks have come here. Collective.
  subroutine mh_sync(session, stat)
    type(mh_session), intent(in) :: session
    integer, intent(out), optional :: stat

    call finish(c_sync(session%handle), stat)
  end subroutine mh_sync

  !> What this rank knows of the session, padded with blanks.
  subroutine mh_report(session, text, stat)
    type(mh_session), intent(in) :: session
    character(*), intent(out) :: text
    integer, intent(out), optional :: stat
    character(kind=c_char) :: buffer(len(text) + 1)
    integer :: i
    integer(c_int) :: status

    buffer = c_null_char
    status = c_report(session%handle, buffer, size(buffer, kind=c_size_t))
    text = ''
    do i = 1, len(text)
      if (buffer(i) == c_null_char) exit
      text(i:i) = buffer(i)
    end do
    call finish(status, stat)
  end subroutine mh_report

  !> What went wrong in the last call, '' after one that went well.
  function mh_error() result(text)
    character(:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    type(c_ptr) :: where_text
    integer :: i

    if (allocated(problem)) then
      text = problem
      if (text /= '') return
      deallocate(text)
    end if
    where_text = c_error()
    call c_f_pointer(where_text, letters, [c_strlen(where_text)])
    allocate(character(size(letters)) :: text)
    do i = 1, size(letters)
      text(i:i) = letters(i)
    end do
  end function mh_error

  !> What the C side cannot be told of an array.
  function problem_of(array) result(text)
    type(*), dimension(..), intent(in), target, asynchronous :: array
    character(:), allocatable :: text
    character(kind=c_char) :: letters(200)
    integer :: i

    call c_problem(array, letters)
    text = ''
    do i = 1, size(letters)
      if (letters(i) == c_null_char) exit
      text = text // letters(i)
    end do
  end function problem_of

  !> The lists of mh_field, or a problem.
  subroutine take_lists(dims, ghosts, ghosts_high, begin, global, low, high, first, whole)
    integer, intent(in) :: dims
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    integer(c_int64_t), intent(out) :: low(15), high(15), first(15), whole(15)

    call take(low, 0, 'ghosts', dims, ghosts)
    high = low
    if (present(ghosts_high)) call take(high, 0, 'ghosts_high', dims, ghosts_high)
    call take(first, 1, 'begin', dims, begin)
    call take(whole, 0, 'global', dims, global)
  end subroutine take_lists

  !> `given`, which has a number for each dim of the array, or `otherwise`.
  subroutine take(values, otherwise, name, dims, given)
    integer(c_int64_t), intent(out) :: values(15)
    integer, intent(in) :: otherwise, dims
    character(*), intent(in) :: name
    integer, intent(in), optional :: given(:)
    character(80) :: text

    values = otherwise
    if (.not. present(given)) return
    if (size(given) == dims) then
      values(:dims) = given
    else
      write (text, '(2a, i0, a, i0)') name, ' has ', size(given), ' numbers, the array is of rank ', dims
      problem = trim(text)
    end if
  end subroutine take

  subroutine finish(status, stat)
    integer(c_int), intent(in) :: status
    integer, intent(out), optional :: stat

    problem = ''
    if (present(stat)) then
      stat = status
    else if (status /= MH_OK) then
      if (c_error_repeats() /= 0) call c_let_another_tell()
      error stop 'moonhalo: ' // mh_error()
    end if
  end subroutine finish

end module moonhalo
