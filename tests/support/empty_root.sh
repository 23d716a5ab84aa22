# SPDX-License-Identifier: Apache-2.0
# Read by scripts that try what was built where almost nothing else is: a root in a mount namespace of their own.

# Mounts are private by default.
own_mounts=(unshare --mount)
((EUID == 0)) || own_mounts+=(--map-root-user)
may_mount() { "${own_mounts[@]}" true; }

# in_own_mounts SCRIPT ARGUMENTS...: goes on in that namespace; needs root, or user namespaces
in_own_mounts() {
  [[ -z ${MOONHALO_IN_NAMESPACE:-} ]] || return 0
  export MOONHALO_IN_NAMESPACE=1
  exec "${own_mounts[@]}" "$@"
}

# take FILE FOLDER: the file's libraries, those of the system to lib and others to FOLDER
take() {
  local name path system='^(lib(c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+)\.so|ld-linux)'
  while read -r name path; do
    if [[ $name =~ $system ]]; then cp -Ln "$path" lib/; else cp -Ln "$path" "$2/"; fi
  done < <(ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }')
}

# begin_root PROGRAM...: an empty root becomes the current folder: glibc, GCC's run-time libraries, /proc, /dev, programs
begin_root() {
  local program name
  mount -t tmpfs none "$1"
  cd "$1"
  shift
  mkdir -p bin lib lib64 usr/bin tmp dev proc sys etc home
  for program; do
    cp -L "$(command -v "$program")" bin/
    take "$(command -v "$program")" lib
  done
  cp -L /lib64/ld-linux-x86-64.so.2 lib64/
  cp -Ln "$(gcc -print-file-name=libstdc++.so.6)" "$(gcc -print-file-name=libgcc_s.so.1)" lib/
  for name in m dl rt pthread util resolv; do cp -Ln /lib/x86_64-linux-gnu/lib$name.so.? lib/; done
  mount --rbind /proc proc
  mount --rbind /sys sys
  for name in null urandom; do touch dev/$name && mount --bind /dev/$name dev/$name; done
  mkdir dev/shm && mount -t tmpfs none dev/shm
}

# take_python PROGRAM FOLDER: the standard library of Python, and what it needs to FOLDER
take_python() {
  local module version
  version=$(basename "$1")
  take "$1" "$2"
  mkdir -p "usr/lib/$version"
  mount --bind "/usr/lib/$version" "usr/lib/$version"
  for module in "/usr/lib/$version"/lib-dynload/*.so; do take "$module" "$2"; done
}
