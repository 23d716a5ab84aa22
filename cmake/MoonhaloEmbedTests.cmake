# Solvers in C with an MPI of their own, around a script (X15). Once as C99 and once as C++: the header serves both.
# Read by MoonhaloTests.cmake.
file(GLOB host_files CONFIGURE_DEPENDS tests/embed/*.c)
if(host_files AND MPI_C_FOUND AND NOT MOONHALO_SANITIZE)
  set(host_warnings -Wall -Wextra -Wpedantic -Wshadow -Werror)
  add_executable(embed_host ${host_files})
  set_target_properties(embed_host PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
  set(host_files_cxx "")
  foreach(path IN LISTS host_files)
    get_filename_component(name "${path}" NAME_WE)
    file(CONFIGURE OUTPUT "generated/${name}.cpp" CONTENT "#include \"${path}\"\n")
    list(APPEND host_files_cxx "${PROJECT_BINARY_DIR}/generated/${name}.cpp")
  endforeach()
  add_executable(embed_host_cxx ${host_files_cxx})
  target_compile_definitions(embed_host_cxx PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  add_executable(embed_session tests/embed/session.cpp)
  set_target_properties(embed_session PROPERTIES CXX_STANDARD 11)
  target_compile_definitions(embed_session PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  foreach(target embed_host embed_host_cxx embed_session)
    target_compile_options(${target} PRIVATE ${host_warnings})
    target_link_libraries(${target} PRIVATE moonhalo::c m)
  endforeach()
  target_link_libraries(embed_host PRIVATE MPI::MPI_C)
  # Its threads are LibTorch's too.
  target_compile_options(embed_host PRIVATE ${OpenMP_C_FLAGS})
  target_link_libraries(embed_host PRIVATE gomp)
  target_link_libraries(embed_host_cxx PRIVATE MPI::MPI_C)
  target_link_libraries(embed_session PRIVATE MPI::MPI_C)
  # moonhalo_add_host_test(NAME RANKS CASE ARGUMENTS...): names that begin with asan_ are those of the host that has it.
  function(moonhalo_add_host_test name ranks case)
    set(script host)
    set(program embed_host)
    if(name MATCHES "^asan_")
      set(program embed_host_asan)
    endif()
    if(case MATCHES trainers)
      set(script trainers)
    endif()
    moonhalo_add_test(NAME embed.${name} COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} $<TARGET_FILE:${program}> ${case}
                                        "${PROJECT_SOURCE_DIR}/tests/embed/${script}.lua" ${ARGN})
    set_tests_properties(embed.${name} PROPERTIES LABELS ranks PROCESSORS 2 ENVIRONMENT
                                                  "${mpi_environment}")
  endfunction()
  foreach(ranks 1 2 3 4)
    moonhalo_add_host_test(fields_${ranks} ${ranks} fields)
    moonhalo_add_host_test(errors_${ranks} ${ranks} errors)
    moonhalo_add_host_test(state_${ranks} ${ranks} state)
    moonhalo_add_host_test(float_${ranks} ${ranks} float)
    set_property(TEST embed.float_${ranks} APPEND PROPERTY ENVIRONMENT OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive)
    moonhalo_add_host_test(budget_${ranks} ${ranks} budget)
  endforeach()
  foreach(ranks 2 4)
    moonhalo_add_host_test(faults_${ranks} ${ranks} faults)
    moonhalo_add_host_test(sessions_${ranks} ${ranks} sessions)
  endforeach()
  foreach(level 0 1 2)
    moonhalo_add_host_test(thread_level_${level} 2 fields ${level})
  endforeach()
  # A call beside the solver, which needs a library of MPI that serves several threads.
  foreach(ranks 1 3)
    moonhalo_add_host_test(beside_${ranks} ${ranks} beside)
  endforeach()
  moonhalo_add_host_test(beside_without_threads 2 beside 2)
  foreach(ranks 2 3 4)
    moonhalo_add_host_test(ensemble_${ranks} ${ranks} ensemble)
  endforeach()
  # The last one or two ranks train for the others.
  foreach(ranks 2 3 4 5)
    moonhalo_add_host_test(trainers_${ranks} ${ranks} trainers)
  endforeach()
  # The same without a communicator: messages by functions that the host gives.
  foreach(case fields errors faults sessions beside trainers finalised budget)
    moonhalo_add_host_test(transport_${case} 3 transport_${case})
  endforeach()
  moonhalo_add_host_test(finalised 2 finalised)
  moonhalo_add_host_test(early 2 early)
  moonhalo_add_host_test(patient 2 patient)
  moonhalo_add_test(NAME embed.cxx COMMAND ${MPIEXEC_EXECUTABLE} -n 2 $<TARGET_FILE:embed_host_cxx> fields
                                  "${PROJECT_SOURCE_DIR}/tests/embed/host.lua")
  moonhalo_add_test(NAME embed.session COMMAND ${MPIEXEC_EXECUTABLE} -n 3 $<TARGET_FILE:embed_session>
      "${PROJECT_SOURCE_DIR}/tests/embed/host.lua")
  set_tests_properties(embed.cxx embed.session PROPERTIES LABELS ranks PROCESSORS 2 ENVIRONMENT "${mpi_environment}")
endif()

# moonhalo_add_own_host(NAME FILE LIBRARIES [ARGUMENTS...]): a program in C99 that runs alone, on the hosts' script.
function(moonhalo_add_own_host name file libraries)
  add_executable(embed_${name} ${file})
  set_target_properties(embed_${name} PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON)
  target_compile_options(embed_${name} PRIVATE ${host_warnings})
  target_link_libraries(embed_${name} PRIVATE ${libraries} moonhalo::c)
  moonhalo_add_test(NAME embed.${name} COMMAND embed_${name} "${PROJECT_SOURCE_DIR}/tests/embed/host.lua" ${ARGN})
  set_tests_properties(embed.${name} PROPERTIES ENVIRONMENT "${test_environment}")
endfunction()
if(TARGET embed_host)
  # A host with a Lua of its own: compiled as C it is refused, as C++ both use it.
  pkg_check_modules(PLAIN_LUA IMPORTED_TARGET lua5.4)
  if(TARGET PkgConfig::PLAIN_LUA)
    moonhalo_add_own_host(plain_lua tests/embed/plain_lua/main.c PkgConfig::PLAIN_LUA refused)
  endif()
  moonhalo_add_own_host(shared_lua tests/embed/plain_lua/main.c PkgConfig::MOONHALO_LUA works)
  # A host without MPI, one of whose processes is killed.
  moonhalo_add_own_host(lost_rank tests/embed/lost_rank/main.c "")
  set_tests_properties(embed.lost_rank PROPERTIES LABELS ranks PROCESSORS 2)
endif()

# The same host under the address sanitizer: its own files and those of scripting/embed are compiled with it, which
# watches what they read and write. LibTorch and the rest of Moonhalo are as they are, but all their memory comes from
# the sanitizer's malloc, which finds what is freed twice or never.
if(TARGET embed_host)
  include(CheckCXXSourceRuns)
  set(CMAKE_REQUIRED_FLAGS -fsanitize=address)
  # Containers that refuse ptrace cannot look for leaks.
  check_cxx_source_runs(
    "#include <sanitizer/lsan_interface.h>
int main() { return __lsan_do_recoverable_leak_check(); }"
    MOONHALO_HAS_ASAN)
  unset(CMAKE_REQUIRED_FLAGS)
endif()
if(MOONHALO_HAS_ASAN)
  file(GLOB embed_files CONFIGURE_DEPENDS scripting/embed/*.cpp)
  add_executable(embed_host_asan ${host_files} ${embed_files})
  set_target_properties(embed_host_asan PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
  target_compile_options(embed_host_asan PRIVATE -O1 -g1 -fsanitize=address)
  moonhalo_unite(embed_host_asan)  # one file, for which a precompiled header would not pay
  target_link_options(embed_host_asan PRIVATE -fsanitize=address)
  target_link_libraries(embed_host_asan PRIVATE moonhalo PkgConfig::MOONHALO_LUA PkgConfig::MOONHALO_HDF5 MPI::MPI_C m)
  # Ranks that look for each other by PMIx lose a few bytes. A request for 8 TB is to be refused, not to end the host.
  # Tables of thread-local memory are left to glibc, whose blocks GCC 12's runtime takes for others.
  string(CONCAT asan_options "ASAN_OPTIONS=detect_stack_use_after_return=1:leak_check_at_exit=0:"
         "allocator_may_return_null=1:"
                             "intercept_tls_get_addr=0")
  list(APPEND asan_options
                   "LSAN_OPTIONS=print_suppressions=0:suppressions='${PROJECT_SOURCE_DIR}/cmake/sanitizers/lsan.txt'")
  foreach(case sessions:1 sessions:3 transport_sessions:2 fields:3 errors:2 faults:2 beside:2 trainers:3 ensemble:2)
    string(REPLACE ":" ";" case ${case})
    list(GET case 0 name)
    list(GET case 1 ranks)
    moonhalo_add_host_test(asan_${name}_${ranks} ${ranks} ${name})
    set_tests_properties(embed.asan_${name}_${ranks} PROPERTIES ENVIRONMENT "${mpi_environment};${asan_options}")
  endforeach()
endif()

# Scripts of hosts without the hosts (moonhalo check).
function(moonhalo_add_check_test name expected)
  moonhalo_add_test(NAME embed.check_${name} COMMAND moonhalo_cli check ${ARGN})
  set_tests_properties(embed.check_${name} PROPERTIES PASS_REGULAR_EXPRESSION "${expected}"
      ENVIRONMENT "${test_environment}")
endfunction()
set(host_script "${PROJECT_SOURCE_DIR}/tests/embed/host.lua")
moonhalo_add_check_test(example "ok     learn\\(\\) -> 0\nok     leap\\(\\)\nok     measure\\(\\) -> 0.981586, 0"
                        "${PROJECT_SOURCE_DIR}/examples/embed/surrogate.lua" --ranks 4 --field u=13x11 --call remember
                        --call learn --call leap --call measure)
# Two fields, and ranks that train by themselves where there is no solver: at each second step.
string(CONCAT trained "ok     step\\(1.0\\) -> 0\nok     step\\(2.0\\) -> 1\nok     serve\\(\\) -> 0\n"
       "ok     learned\\(\\) -> [0-9.]+, 2\n")
moonhalo_add_check_test(trainers "${trained}"
                        "${PROJECT_SOURCE_DIR}/tests/embed/trainers.lua" --ranks 2 --set trainers=1 --field u=13x11
                        --field c=2x3 --call step=1 --call step=2 --call serve --call learned)
moonhalo_add_check_test(numbers "ok     half\\(3.0\\) -> 1.5\n" "${host_script}" --call half=3)
moonhalo_add_check_test(error "host.lua:[0-9]+: the pressure is negative" "${host_script}" --ranks 2 --call fails)
moonhalo_add_check_test(missing_field "no field 'u' was registered; did you mean 'uu'" "${host_script}" --field uu=4
    --call train)
moonhalo_add_check_test(missing_function "check: the script has no function 'trian'; did you mean 'train'"
    "${host_script}" --call trian)
moonhalo_add_check_test(form "check: --field: cannot read 'u=4y5'" "${host_script}" --field u=4y5)
string(CONCAT all_called "ok     leap\\(1\\)\nok     learn\\(\\) -> 47.6604\nok     measure\\(1, 1\\) -> 2.58868, "
       "a tensor of .6, 5., which mh_call cannot take\nok     remember")
moonhalo_add_check_test(all "${all_called}"
                        "${PROJECT_SOURCE_DIR}/tests/embed/check_all.lua" --field u=6x5:float32)

# Compared with whole fields: alike, and a function that is not.
moonhalo_add_check_test(verify "same  learn\\(\\), to [0-9.e-]+ .(everywhere|result 1).\nok     learn"
                        "${PROJECT_SOURCE_DIR}/tests/embed/check_all.lua" --ranks 3 --field u=6x5 --verify)
string(CONCAT differs "host.verify: 'centre' gives other numbers on 3 ranks than on one\n"
       "  have  field u.[0-9], [0-9]. is ")
moonhalo_add_check_test(verify_fails "${differs}"
                        "${PROJECT_SOURCE_DIR}/tests/embed/check_own.lua" --ranks 3 --field u=6x5 --verify)

# The same host with another MPI than Moonhalo's: its functions are all that Moonhalo has of it.
find_program(MOONHALO_MPICH_CC mpicc.mpich)
find_program(MOONHALO_MPICH_RUN mpiexec.mpich)
if(TARGET embed_host AND MOONHALO_MPICH_CC AND MOONHALO_MPICH_RUN)
  set(mpich_host "${PROJECT_BINARY_DIR}/bin/embed_host_mpich")
  file(GLOB host_headers CONFIGURE_DEPENDS tests/embed/*.h)
  add_custom_command(
    OUTPUT "${mpich_host}"
    COMMAND ${MOONHALO_MPICH_CC} -std=c99 ${host_warnings} -I "${PROJECT_BINARY_DIR}/include" -o "${mpich_host}"
            ${host_files} $<TARGET_FILE:moonhalo> -Wl,-rpath,$<TARGET_FILE_DIR:moonhalo> -Wl,--allow-shlib-undefined -lm
    DEPENDS ${host_files} ${host_headers} scripting/embed/moonhalo_c.h scripting/embed/moonhalo_mpi.h moonhalo
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    VERBATIM)
  add_custom_target(embed_host_mpich ALL DEPENDS "${mpich_host}")
  foreach(case transport_fields transport_errors transport_faults transport_sessions transport_beside
      transport_finalised foreign)
    moonhalo_add_test(NAME embed.mpich_${case} COMMAND ${MOONHALO_MPICH_RUN} -n 3 "${mpich_host}" ${case}
                                              "${PROJECT_SOURCE_DIR}/tests/embed/host.lua")
    set_tests_properties(embed.mpich_${case} PROPERTIES LABELS ranks PROCESSORS 2 ENVIRONMENT
                                                        "${test_environment}")
  endforeach()
elseif(TARGET embed_host)
  set(no_mpich "MPICH is not installed (Debian: mpich, libmpich-dev)")
  moonhalo_add_test(NAME embed.mpich
      COMMAND sh -c "test -z \"$MOONHALO_REQUIRE_TEST_PACKAGES\" && echo 'skipped: ${no_mpich}'")
  set_tests_properties(embed.mpich PROPERTIES LABELS ranks SKIP_REGULAR_EXPRESSION "skipped: ")
endif()

# Programs in C, C++ and Fortran against the installed package; those of examples/embed with MPICH too.
# Y07: a model of torch.export in solvers in C, C++ and Fortran.
if(MOONHALO_INSTALL AND MPI_C_FOUND AND Python3_Interpreter_FOUND AND NOT MOONHALO_SANITIZE)
  set(script_of_package check_embed)
  set(script_of_solvers check_solvers)
  set(arguments_of_solvers "${moonhalo_python}" "missing=${moonhalo_no_python}")
  foreach(name package solvers)
    moonhalo_add_test(LONG NAME embed.${name} COMMAND Python3::Interpreter
                                        "${PROJECT_SOURCE_DIR}/tests/package/${script_of_${name}}.py" "${CMAKE_COMMAND}"
                                        "${PROJECT_BINARY_DIR}" "${PROJECT_SOURCE_DIR}" "${MPIEXEC_EXECUTABLE}"
                                        ${arguments_of_${name}})
    set_tests_properties(embed.${name} PROPERTIES LABELS package PROCESSORS 2 ENVIRONMENT "${mpi_environment}")
  endforeach()
endif()

if(Python3_Interpreter_FOUND)
  moonhalo_add_test(NAME embed.wheel COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/python/check_wheel.py"
      "${PROJECT_SOURCE_DIR}")
endif()

# The wheel of `./dev wheel` where almost nothing else is (docs/python.md).
if(TARGET moonhalo_wheel)
  moonhalo_add_test(LONG NAME embed.wheel_alone COMMAND "${PROJECT_SOURCE_DIR}/tests/python/check_wheel_alone.sh"
                                                "${PROJECT_BINARY_DIR}" "${moonhalo_python}")
  set_tests_properties(embed.wheel_alone PROPERTIES LABELS ranks SKIP_RETURN_CODE 77 PROCESSORS 2 ENVIRONMENT
                                                    "${test_environment}")
endif()

# Y05: the Python package, in the environment of LibTorch's wheel (docs/python.md).
if(Python3_Interpreter_FOUND AND NOT MOONHALO_SANITIZE)
  set(python_parts launches ends installed)
  if(MPI_C_FOUND)
    list(PREPEND python_parts ranks)
  endif()
  foreach(part ${python_parts})
    moonhalo_add_test(LONG NAME embed.python_${part} COMMAND Python3::Interpreter
                      "${PROJECT_SOURCE_DIR}/tests/python/check_python.py" ${part} "${moonhalo_python}"
                      "${PROJECT_BINARY_DIR}" "${PROJECT_SOURCE_DIR}" "missing=${moonhalo_no_python}"
                      "mpiexec=$<$<BOOL:${MPI_C_FOUND}>:${MPIEXEC_EXECUTABLE}>")
    set_tests_properties(embed.python_${part} PROPERTIES LABELS ranks SKIP_RETURN_CODE 77 ENVIRONMENT
                                                         "${mpi_environment}")
  endforeach()
  # Models that PyTorch saves, in Lua (docs/pytorch_models.md).
  moonhalo_add_test(LONG NAME embed.pytorch_models COMMAND Python3::Interpreter
                                     "${PROJECT_SOURCE_DIR}/tests/python/check_pytorch_models.py" "${moonhalo_python}"
                                     $<TARGET_FILE:moonhalo_cli> "${PROJECT_SOURCE_DIR}" "missing=${moonhalo_no_python}"
                                     "mpiexec=$<$<BOOL:${MPI_C_FOUND}>:${MPIEXEC_EXECUTABLE}>")
  set_tests_properties(embed.pytorch_models PROPERTIES LABELS ranks SKIP_RETURN_CODE 77 PROCESSORS 2
                                                       ENVIRONMENT "${mpi_environment}")
endif()
