! SPDX-License-Identifier: Apache-2.0
!> The Fortran interface for simulation codes: moonhalo_c.h for arrays of any rank and kind, used in place.
!>
!>     type(mh_session) :: session
!>     call mh_open(session, 'surrogate.lua', comm)                  ! integer or type(MPI_Comm); omit it for one rank
!>     call mh_field(session, 'u', u, ghosts=[1, 1], begin=[i0, j0]) ! once: mh.host.fields.u in the script
!>     call mh_call(session, 'train', [dt], out)                     ! function train(dt) ... return loss end
!>
!> With stat= a subroutine returns the status of moonhalo_c.h, and mh_error() returns the message. Without it an error
!> ends the program by error stop with that message; an error of all ranks is printed by one rank only. The script gets
!> the dims of a field in reverse order: u(i, j) is u[j][i] there.
!>
!> An array may be a whole array, a section a(2:9, :) or an array in a variable of derived type; none is copied. For a
!> component of an array of derived type (cells%p) and for a section with a step, use mh_field_at, which takes the first
!> element.
module moonhalo
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  implicit none
  private
  public :: mh_session, mh_box_list, mh_transport, mh_open, mh_close, mh_field, mh_field_at, mh_unregister, mh_add_box, &
    mh_add_box_at, mh_boxes, mh_call, mh_call_begin, mh_call_end, mh_save, mh_load, mh_sync, mh_report, mh_error, &
    mh_mpi_transport, mh_mpi_transport_free

  !> What a function returns in `stat`; mh_error() has the message. moonhalo_c.h describes each.
  integer, parameter, public :: MH_OK = 0, MH_SCRIPT = 1, MH_USAGE = 2, MH_RANK_LOST = 3, MH_MEMORY = 4, &
    MH_UNSUPPORTED = 5, MH_INTERNAL = 6

  character(:), allocatable :: problem  ! what is wrong with this side of a call

  !> A session, which mh_open makes and mh_close frees.
  type :: mh_session
    private
    type(c_ptr) :: handle = c_null_ptr
  end type mh_session

  !> A list of boxes for mh_boxes.
  type :: mh_box_list
    private
    type(c_ptr) :: handle = c_null_ptr
  end type mh_box_list

  !> Message-passing callbacks of the program, in place of a communicator; moonhalo_c.h says what each must do. They are
  !> functions with bind(c), passed through c_funloc.
  type, bind(c) :: mh_transport
    integer(c_size_t) :: size = 0                    !< c_sizeof of a variable of this type
    type(c_ptr) :: context = c_null_ptr              !< passed to each function
    type(c_funptr) :: rank = c_null_funptr, ranks = c_null_funptr
    type(c_funptr) :: isend = c_null_funptr, irecv = c_null_funptr, test = c_null_funptr, cancel = c_null_funptr
    integer(c_int) :: any_thread = 0                 !< 1: other threads may call MPI at the same time
  end type mh_transport

  !> Registers the owned part of an array as a field of the script. Lists have one number per dim of the array.
  !> Collective.
  !>     mh_field(session, name, array, ghosts, ghosts_high, begin, global, ghosts_filled, stat)
  !> ghosts: number of ghost rows before the owned ones, and after them unless ghosts_high is given. begin: index of the
  !> first owned row in the whole field, from 1. global: extents of the whole field. ghosts_filled: in every mh_call the
  !> ghosts hold the neighbours' rows, corners included, and are read in place of messages. The array is a pointer
  !> argument, so that compilers pass it without a copy.
  interface mh_field
    module procedure field_real32, field_real64, field_int32, field_int64, field_complex32, field_complex64
  end interface mh_field

  !> Adds a box to the list of a field that consists of boxes. Lists as for mh_field. Not collective.
  !>     mh_add_box(boxes, array, ghosts, ghosts_high, begin, global, stat)
  interface mh_add_box
    module procedure box_real32, box_real64, box_int32, box_int64, box_complex32, box_complex64
  end interface mh_add_box

  !> The lists of an array in the form of the C functions, and an error in them.
  type, bind(c) :: array_lists
    integer(c_int64_t) :: ghost_low(15) = 0, ghost_high(15) = 0, begin(15) = 1, global(15) = 0
    character(kind=c_char) :: problem(81) = c_null_char
  end type array_lists

  !> Make and free a transport over the program's MPI, if Moonhalo was built with another one; return 0 for success.
  !> `comm` is an integer handle (of mpi_f08: comm%MPI_VAL) and is duplicated. Free a transport after its session has
  !> been closed. Both are collective. Link moonhalo::fortran_mpi, whose C file the program's MPI compiles.
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
    integer(c_int) function c_open(script, comm, transport, settings, timeout, budget, finite, session) &
        bind(c, name='moonhalo_open')
      import
      character(kind=c_char), intent(in) :: script(*)
      type(c_ptr), value :: comm, transport, settings
      real(c_double), value :: timeout, budget
      integer(c_int), value :: finite
      type(c_ptr), intent(out) :: session
    end function c_open
    integer(c_int) function c_field(session, name, lists, filled, array, first) bind(c, name='moonhalo_field_of_array')
      import
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: name(*)
      type(array_lists), intent(in) :: lists
      integer(c_int), value :: filled
      type(*), dimension(..), intent(in), target, asynchronous :: array
      type(*), dimension(..), intent(in), optional, target, asynchronous :: first
    end function c_field
    integer(c_int) function c_add_box(list, text, lists, array, first) bind(c, name='moonhalo_add_box')
      import
      type(c_ptr), intent(inout) :: list
      character(kind=c_char), intent(out) :: text(500)
      type(array_lists), intent(in) :: lists
      type(*), dimension(..), intent(in), target, asynchronous :: array
      type(*), dimension(..), intent(in), optional, target, asynchronous :: first
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
    subroutine c_wait_for_first_message() bind(c, name='moonhalo_wait_for_first_message')
    end subroutine c_wait_for_first_message
    integer(c_size_t) function c_strlen(text) bind(c, name='strlen')
      import
      type(c_ptr), value :: text
    end function c_strlen
  end interface

contains

  !> Starts a session and runs the script. Collective over `comm`: an integer handle, or a type(MPI_Comm) of mpi_f08.
  subroutine mh_open(session, script, comm, settings, timeout, transport, stat, call_budget, check_finite)
    type(mh_session), intent(out) :: session
    character(*), intent(in) :: script
    type(*), intent(in), optional, target :: comm
    character(*), intent(in), optional :: settings      !< 'lr=1e-3 model="run 3/unet.pt2"'
    real(c_double), intent(in), optional :: timeout     !< timeout for a rank that does not respond, in seconds
    type(c_ptr), intent(in), optional :: transport      !< in place of comm: c_loc of an mh_transport
    integer, intent(out), optional :: stat
    real(c_double), intent(in), optional :: call_budget !< longest run time of a script function, in seconds
    logical, intent(in), optional :: check_finite       !< NaN and infinity in fields and numbers are errors of mh_call
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
    call finish(c_open(script // c_null_char, where_comm, where_transport, where_settings, limit, budget, &
      is_true(check_finite), session%handle), stat)
  end subroutine mh_open

  !> Ends the session. Call it before MPI_Finalize. Collective.
  subroutine mh_close(session, stat)
    type(mh_session), intent(inout) :: session
    integer, intent(out), optional :: stat
    type(c_ptr) :: handle

    handle = session%handle
    session%handle = c_null_ptr
    call finish(c_close(handle), stat)
  end subroutine mh_close

  subroutine field_real32(session, name, array, ghosts, ghosts_high, begin, global, ghosts_filled, stat)
    real(real32), pointer, intent(in), asynchronous :: array(..)
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: name
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    logical, intent(in), optional :: ghosts_filled
    integer, intent(out), optional :: stat

    call finish(c_field(session%handle, name // c_null_char, lists_of(rank(array), ghosts, ghosts_high, begin, global), &
      is_true(ghosts_filled), array), stat)
  end subroutine field_real32

  subroutine field_real64(session, name, array, ghosts, ghosts_high, begin, global, ghosts_filled, stat)
    real(real64), pointer, intent(in), asynchronous :: array(..)
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: name
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    logical, intent(in), optional :: ghosts_filled
    integer, intent(out), optional :: stat

    call finish(c_field(session%handle, name // c_null_char, lists_of(rank(array), ghosts, ghosts_high, begin, global), &
      is_true(ghosts_filled), array), stat)
  end subroutine field_real64

  subroutine field_int32(session, name, array, ghosts, ghosts_high, begin, global, ghosts_filled, stat)
    integer(int32), pointer, intent(in), asynchronous :: array(..)
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: name
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    logical, intent(in), optional :: ghosts_filled
    integer, intent(out), optional :: stat

    call finish(c_field(session%handle, name // c_null_char, lists_of(rank(array), ghosts, ghosts_high, begin, global), &
      is_true(ghosts_filled), array), stat)
  end subroutine field_int32

  subroutine field_int64(session, name, array, ghosts, ghosts_high, begin, global, ghosts_filled, stat)
    integer(int64), pointer, intent(in), asynchronous :: array(..)
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: name
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    logical, intent(in), optional :: ghosts_filled
    integer, intent(out), optional :: stat

    call finish(c_field(session%handle, name // c_null_char, lists_of(rank(array), ghosts, ghosts_high, begin, global), &
      is_true(ghosts_filled), array), stat)
  end subroutine field_int64

  subroutine field_complex32(session, name, array, ghosts, ghosts_high, begin, global, ghosts_filled, stat)
    complex(real32), pointer, intent(in), asynchronous :: array(..)
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: name
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    logical, intent(in), optional :: ghosts_filled
    integer, intent(out), optional :: stat

    call finish(c_field(session%handle, name // c_null_char, lists_of(rank(array), ghosts, ghosts_high, begin, global), &
      is_true(ghosts_filled), array), stat)
  end subroutine field_complex32

  subroutine field_complex64(session, name, array, ghosts, ghosts_high, begin, global, ghosts_filled, stat)
    complex(real64), pointer, intent(in), asynchronous :: array(..)
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: name
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    logical, intent(in), optional :: ghosts_filled
    integer, intent(out), optional :: stat

    call finish(c_field(session%handle, name // c_null_char, lists_of(rank(array), ghosts, ghosts_high, begin, global), &
      is_true(ghosts_filled), array), stat)
  end subroutine field_complex64

  !> Does the same as mh_field for arrays whose first element mh_field cannot determine. `array` is an array of derived
  !> type, or a section of one, and `first` is a component of its first element, cells(1, 1)%p; or `array` is a section
  !> with a step and `first` is its first element. Collective.
  subroutine mh_field_at(session, name, array, first, ghosts, ghosts_high, begin, global, ghosts_filled, stat)
    type(*), dimension(..), intent(in), target, asynchronous :: array, first
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: name
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    logical, intent(in), optional :: ghosts_filled
    integer, intent(out), optional :: stat

    call finish(c_field(session%handle, name // c_null_char, lists_of(rank(array), ghosts, ghosts_high, begin, global), &
      is_true(ghosts_filled), array, first), stat)
  end subroutine mh_field_at

  subroutine box_real32(boxes, array, ghosts, ghosts_high, begin, global, stat)
    real(real32), pointer, intent(in), asynchronous :: array(..)
    type(mh_box_list), intent(inout) :: boxes
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    integer, intent(out), optional :: stat
    character(kind=c_char) :: text(500)

    call finish_box(c_add_box(boxes%handle, text, lists_of(rank(array), ghosts, ghosts_high, begin, global), array), &
      text, stat)
  end subroutine box_real32

  subroutine box_real64(boxes, array, ghosts, ghosts_high, begin, global, stat)
    real(real64), pointer, intent(in), asynchronous :: array(..)
    type(mh_box_list), intent(inout) :: boxes
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    integer, intent(out), optional :: stat
    character(kind=c_char) :: text(500)

    call finish_box(c_add_box(boxes%handle, text, lists_of(rank(array), ghosts, ghosts_high, begin, global), array), &
      text, stat)
  end subroutine box_real64

  subroutine box_int32(boxes, array, ghosts, ghosts_high, begin, global, stat)
    integer(int32), pointer, intent(in), asynchronous :: array(..)
    type(mh_box_list), intent(inout) :: boxes
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    integer, intent(out), optional :: stat
    character(kind=c_char) :: text(500)

    call finish_box(c_add_box(boxes%handle, text, lists_of(rank(array), ghosts, ghosts_high, begin, global), array), &
      text, stat)
  end subroutine box_int32

  subroutine box_int64(boxes, array, ghosts, ghosts_high, begin, global, stat)
    integer(int64), pointer, intent(in), asynchronous :: array(..)
    type(mh_box_list), intent(inout) :: boxes
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    integer, intent(out), optional :: stat
    character(kind=c_char) :: text(500)

    call finish_box(c_add_box(boxes%handle, text, lists_of(rank(array), ghosts, ghosts_high, begin, global), array), &
      text, stat)
  end subroutine box_int64

  subroutine box_complex32(boxes, array, ghosts, ghosts_high, begin, global, stat)
    complex(real32), pointer, intent(in), asynchronous :: array(..)
    type(mh_box_list), intent(inout) :: boxes
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    integer, intent(out), optional :: stat
    character(kind=c_char) :: text(500)

    call finish_box(c_add_box(boxes%handle, text, lists_of(rank(array), ghosts, ghosts_high, begin, global), array), &
      text, stat)
  end subroutine box_complex32

  subroutine box_complex64(boxes, array, ghosts, ghosts_high, begin, global, stat)
    complex(real64), pointer, intent(in), asynchronous :: array(..)
    type(mh_box_list), intent(inout) :: boxes
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    integer, intent(out), optional :: stat
    character(kind=c_char) :: text(500)

    call finish_box(c_add_box(boxes%handle, text, lists_of(rank(array), ghosts, ghosts_high, begin, global), array), &
      text, stat)
  end subroutine box_complex64

  !> Does the same as mh_add_box, with `array` and `first` as for mh_field_at.
  subroutine mh_add_box_at(boxes, array, first, ghosts, ghosts_high, begin, global, stat)
    type(*), dimension(..), intent(in), target, asynchronous :: array, first
    type(mh_box_list), intent(inout) :: boxes
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    integer, intent(out), optional :: stat
    character(kind=c_char) :: text(500)

    call finish_box(c_add_box(boxes%handle, text, lists_of(rank(array), ghosts, ghosts_high, begin, global), &
      array, first), text, stat)
  end subroutine mh_add_box_at

  !> Registers a field that consists of the boxes of all ranks; a rank may have none. Each mh_call copies them. Empties
  !> the list. Collective.
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

  !> Unregisters a field. Call it before the array is deallocated. Collective.
  subroutine mh_unregister(session, name, stat)
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: name
    integer, intent(out), optional :: stat

    call finish(c_register(session%handle, name // c_null_char, c_null_ptr), stat)
  end subroutine mh_unregister

  !> Calls a function of the script with the numbers `in`. Stores as many of its results as `out` has elements.
  !> Collective.
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

  !> Does the same concurrently with the solver: returns immediately; the call uses copies of the current fields.
  !> Collective.
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

  !> Waits for the call of mh_call_begin and stores its results. Collective.
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

  !> Saves the entries of mh.host.state of the script. Collective.
  subroutine mh_save(session, path, stat)
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: path
    integer, intent(out), optional :: stat

    call finish(c_save(session%handle, path // c_null_char), stat)
  end subroutine mh_save

  !> Restores the entries of mh.host.state. Collective.
  subroutine mh_load(session, path, stat)
    type(mh_session), intent(in) :: session
    character(*), intent(in) :: path
    integer, intent(out), optional :: stat

    call finish(c_load(session%handle, path // c_null_char), stat)
  end subroutine mh_load

  !> Waits until all ranks have called it. Collective.
  subroutine mh_sync(session, stat)
    type(mh_session), intent(in) :: session
    integer, intent(out), optional :: stat

    call finish(c_sync(session%handle), stat)
  end subroutine mh_sync

  !> Returns this rank's report of the session, padded with blanks. Not collective.
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

  !> Returns the error message of the last call, '' after success. Not collective.
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

  pure integer(c_int) function is_true(given)
    logical, intent(in), optional :: given

    is_true = 0
    if (present(given)) is_true = merge(1, 0, given)
  end function is_true

  function lists_of(dims, ghosts, ghosts_high, begin, global) result(lists)
    integer, intent(in) :: dims
    integer, intent(in), optional :: ghosts(:), ghosts_high(:), begin(:), global(:)
    type(array_lists) :: lists

    call take(lists%ghost_low, lists, 'ghosts', dims, ghosts)
    lists%ghost_high = lists%ghost_low
    call take(lists%ghost_high, lists, 'ghosts_high', dims, ghosts_high)
    call take(lists%begin, lists, 'begin', dims, begin)
    call take(lists%global, lists, 'global', dims, global)
  end function lists_of

  !> Copies `given`, if present, to `values`. Records a problem unless it has one number per dim of the array.
  subroutine take(values, lists, name, dims, given)
    integer(c_int64_t), intent(inout) :: values(15)
    type(array_lists), intent(inout) :: lists
    integer, intent(in) :: dims
    character(*), intent(in) :: name
    integer, intent(in), optional :: given(:)
    character(80) :: text
    integer :: i

    if (.not. present(given)) return
    if (size(given) == dims) then
      values(:dims) = given
    else
      write (text, '(2a, i0, a, i0)') name, ' has ', size(given), ' numbers, the array is of rank ', dims
      do i = 1, len_trim(text)
        lists%problem(i) = text(i:i)
      end do
    end if
  end subroutine take

  subroutine finish_box(status, letters, stat)
    integer(c_int), intent(in) :: status
    character(kind=c_char), intent(in) :: letters(:)
    integer, intent(out), optional :: stat
    integer :: i

    problem = ''
    do i = 1, size(letters)
      if (letters(i) == c_null_char) exit
      problem = problem // letters(i)
    end do
    if (present(stat)) then
      stat = status
    else if (status /= MH_OK) then
      error stop 'moonhalo: ' // problem
    end if
  end subroutine finish_box

  subroutine finish(status, stat)
    integer(c_int), intent(in) :: status
    integer, intent(out), optional :: stat

    problem = ''
    if (present(stat)) then
      stat = status
    else if (status /= MH_OK) then
      if (c_error_repeats() /= 0) call c_wait_for_first_message()
      error stop 'moonhalo: ' // mh_error()
    end if
  end subroutine finish

end module moonhalo
