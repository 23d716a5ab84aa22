# Plans beside real runs. Read by MoonhaloBenchmarks.cmake: their models are those of `./dev bench plan`.

# Seven models: real ranks send and hold what is planned.
if(TARGET moonhalo_cli)
  foreach(model unet vit fno convnext padded tensor stored)
    moonhalo_add_test(NAME plan.X14_${model} COMMAND moonhalo_cli plan tests/bench/plan_models.lua --ranks 2,3,4
                      --check --check-steps 1 -- ${model} small WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(plan.X14_${model} PROPERTIES LABELS ranks PROCESSORS 2 ENVIRONMENT "${test_environment}")
  endforeach()
endif()

# What a plan advises about uneven blocks names calls that are there, and helps; what it advises about messages and
# about blocks that cannot be more even, too.
if(TARGET moonhalo_cli)
  foreach(remedies uneven_remedies message_remedies)
    moonhalo_add_test(NAME plan.X14_${remedies} COMMAND
                      "${PROJECT_SOURCE_DIR}/tests/scripting/program/${remedies}.sh" $<TARGET_FILE:moonhalo_cli>)
    set_tests_properties(plan.X14_${remedies} PROPERTIES LABELS ranks PROCESSORS 2 ENVIRONMENT "${test_environment}")
  endforeach()
endif()

# Steps that read and write files: of rank threads, and of processes.
if(TARGET moonhalo_cli)
  foreach(does reads writes)
    set(script "${PROJECT_SOURCE_DIR}/tests/scripting/program/plan_${does}.sh" $<TARGET_FILE:moonhalo_cli>)
    moonhalo_add_test(NAME plan.X14_${does} COMMAND ${script} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(plan.X14_${does} PROPERTIES LABELS ranks PROCESSORS 2 ENVIRONMENT "${test_environment}")
    if(mpi_tests AND MPI_C_FOUND)
      moonhalo_add_test(NAME mpi.X14_plan_check_${does} COMMAND ${script} ${MPIEXEC_EXECUTABLE} -n 2
                        WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
      set_tests_properties(mpi.X14_plan_check_${does} PROPERTIES LABELS ranks PROCESSORS 2
                           ENVIRONMENT "${mpi_environment}")
    endif()
  endforeach()
endif()

# The kinds of 200 ranks, of which some read or write what others need or have.
if(TARGET moonhalo_cli)
  moonhalo_add_test(NAME plan.X14_shares COMMAND "${PROJECT_SOURCE_DIR}/tests/scripting/program/plan_shares.sh"
                    $<TARGET_FILE:moonhalo_cli> WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(plan.X14_shares PROPERTIES LABELS ranks PROCESSORS 2 ENVIRONMENT "${test_environment}")
endif()

# Over TCP nobody but rank 0 ends the other one.
if(TARGET moonhalo_cli)
  moonhalo_add_test(NAME plan.X14_first_rank_fails COMMAND "${PROJECT_SOURCE_DIR}/tests/launch/start_ranks.sh" variables
                    2 $<TARGET_FILE:moonhalo_cli> plan tests/bench/plan_models.lua --check -- no_such_model small
                    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(plan.X14_first_rank_fails PROPERTIES LABELS ranks PROCESSORS 2 ENVIRONMENT "${test_environment}"
                       PASS_REGULAR_EXPRESSION "rank 1 ends, because rank 0 failed before the real run")
endif()

if(TARGET moonhalo_cli AND mpi_tests AND MPI_C_FOUND)
  # Each process holds what is planned for it. The peak of vit is in the sum of its gradients.
  foreach(model unet vit fno convnext padded pipeline)
    set(script tests/bench/plan_models.lua --check --check-steps 1 -- ${model} small)
    if(model STREQUAL pipeline)
      set(script tests/scripting/support/plan_pipeline.lua --check --check-steps 1)
    endif()
    moonhalo_add_test(NAME mpi.X14_plan_check_${model} COMMAND ${MPIEXEC_EXECUTABLE} -n 2 $<TARGET_FILE:moonhalo_cli>
                      plan ${script}
                      WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(mpi.X14_plan_check_${model} PROPERTIES LABELS ranks PROCESSORS 2
                         ENVIRONMENT "${mpi_environment}"
                         PASS_REGULAR_EXPRESSION "a real run of 2 processes here: every rank sends what is planned"
                         FAIL_REGULAR_EXPRESSION "out by more")
  endforeach()
endif()
