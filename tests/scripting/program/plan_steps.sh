# X14: for scripts that compare steps with their plan. They set `program`, `script`, `folder`, and `launcher`, an array
# that is empty where ranks are threads. `failed` is 1 after a check that failed.
failed=0

# check RANKS WORD...: plans the script with these words and runs it.
check() {
  local ranks=$1
  shift
  local words=("$program" plan "$script" --check --check-steps 1)
  if [ ${#launcher[@]} -eq 0 ]; then words+=(--ranks "$ranks"); fi
  if ! "${launcher[@]}" "${words[@]}" -- "$folder" "$@" > "$folder/report.txt" 2>&1 ||
    ! grep -q "every rank sends what is planned" "$folder/report.txt" ||
    grep -q "out by more" "$folder/report.txt"; then
    echo "$*:"
    cat "$folder/report.txt"
    failed=1
  fi
}
