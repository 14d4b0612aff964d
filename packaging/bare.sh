#!/usr/bin/env bash
# What newcomers meet on a bare machine: ./dev demo and ./dev test in a Debian that holds nothing but python3 and g++.
#
#   packaging/bare.sh [demo] [test]      both, if none is named
#
#   debootstrap minbase ──► copied ──► the committed tree in a folder with a space in its name, a home that nobody may
#                                      write to ──► ./dev demo, ./dev test ──► what apt had to bring, minutes
#
# Needs root, debootstrap and a network. torch comes from pip's own index (the wheel with CUDA), and once more from
# $STOWAGE_TORCH_INDEX where that names PyTorch's index of CPU wheels. pip's settings (PIP_*) and those of a proxy are
# handed on; local folders that PIP_FIND_LINKS names, and PIP_CERT's file, are there under the same names.
# The base system is kept in build/bare/base; each run has a copy that is removed after it. Ends with the first failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly PLACE=${STOWAGE_BARE:-$PWD/build/bare} SUITE=bookworm
readonly ROOT=$PLACE/root HOME_THERE="/home/newcomer" TREE="/srv/stowage tree"
die() { printf 'bare: %s\n' "$*" >&2; exit 1; }
say() { printf '\033[1m== bare: %s\033[0m\n' "$*" >&2; }

[[ $(id -u) -eq 0 ]] || die "needs root, to change the root folder"
command -v debootstrap >/dev/null || die "needs debootstrap: apt-get install debootstrap"
[[ $# -gt 0 ]] || set -- demo test
for what; do [[ $what == demo || $what == test ]] || die "'$what': it knows demo and test"; done

make_base() {
  [[ -e $PLACE/base/made ]] && return
  say "a minimal Debian $SUITE in $PLACE/base"
  rm -rf "$PLACE/base"
  mkdir -p "$PLACE"
  debootstrap --variant=minbase --include=python3,g++,ca-certificates "$SUITE" "$PLACE/base" >"$PLACE/debootstrap.log" ||
    { tail -n 5 "$PLACE/debootstrap.log" >&2; die "debootstrap failed"; }
  rm -rf "$PLACE/base/var/cache/apt/archives"/*.deb
  touch "$PLACE/base/made"
}

# Runs words in the new root, in namespaces of its own, so that nothing stays mounted and no process stays.
there() {
  local shared=() given=(HOME="$HOME_THERE" PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM="${TERM:-dumb}") name folder
  for name in $(compgen -e | grep -E '^(PIP_.*|.*_proxy|.*_PROXY|STOWAGE_TORCH_INDEX|STOWAGE_JOBS)$' || true); do given+=("$name=${!name}"); done
  for folder in ${PIP_FIND_LINKS:-} ${PIP_CERT:-}; do [[ $folder == /* && -e $folder ]] && shared+=("$folder"); done
  # shellcheck disable=SC2016
  unshare --mount --pid --fork --kill-child -- bash -euo pipefail -c '
    root=$1 home=$2 count=$3; shift 3
    mount --make-rprivate /
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/dev/shm" 2>/dev/null || true
    mount -t tmpfs -o ro tmpfs "$root$home"
    for ((; count > 0; --count)); do
      mkdir -p "$root$(dirname "$1")"
      if [[ -d $1 ]]; then mkdir -p "$root$1"; else touch "$root$1"; fi
      mount --bind "$1" "$root$1"
      shift
    done
    exec chroot "$root" "$@"' bash "$ROOT" "$HOME_THERE" ${#shared[@]} "${shared[@]}" env -i "${given[@]}" "$@"
}

packages() { chroot "$ROOT" dpkg-query -W -f '${Package}\n' | sort; }

one() {
  local what=$1; shift
  say "./dev $what, torch from ${STOWAGE_TORCH_INDEX:-pip}"
  rm -rf --one-file-system "$ROOT"
  cp -a "$PLACE/base" "$ROOT"
  cp /etc/resolv.conf "$ROOT/etc/resolv.conf"
  # Debian's installer writes it, debootstrap does not
  printf '127.0.0.1 localhost\n127.0.1.1 %s\n::1 localhost\n' "$(hostname)" >"$ROOT/etc/hosts"
  mkdir -p "$ROOT$TREE" "$ROOT$HOME_THERE"
  git archive HEAD | tar -x -C "$ROOT$TREE"
  local before began=$SECONDS
  before=$(packages)
  # shellcheck disable=SC2016
  there sh -ec 'cd "$1"; exec ./dev "$2"' sh "$TREE" "$what" 2>&1 | tee "$PLACE/$what.log" >&2 || die "./dev $what failed: $PLACE/$what.log"
  printf '%s, torch %s: %d min %02d s; apt brought %s\n' "$what" \
    "$(sed -n 's/^Version: //p' "$ROOT$TREE"/.venv/lib/python3*/site-packages/torch-*.dist-info/METADATA)" \
    $(((SECONDS - began) / 60)) $(((SECONDS - began) % 60)) "$(comm -13 <(echo "$before") <(packages) | tr '\n' ' ')"
}

make_base
trap 'rm -rf --one-file-system "$ROOT"' EXIT
index=${STOWAGE_TORCH_INDEX:-}
unset STOWAGE_TORCH_INDEX
for what; do
  one "$what"
  if [[ -n $index ]]; then STOWAGE_TORCH_INDEX=$index one "$what"; fi
done
