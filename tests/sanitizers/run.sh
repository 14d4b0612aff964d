#!/usr/bin/env bash
# Runs tests of the Python package on modules that were built with sanitizers:
#
#   tests/sanitizers/run.sh asan|tsan [OPTION or TEST of pytest]...
#
# Python and torch are not built with them: the sanitizer's library is loaded before everything else, and libstdc++ beside it, as it takes
# the place of __cxa_throw, which it has to find there. Findings are shown at the end, and fail the run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

preset=$1; shift
library() { "${CXX:-g++}" -print-file-name="$1"; }
case $preset in
  asan) first=$(library libasan.so) ;;
  tsan) first=$(library libtsan.so) ;;
  *) echo "run.sh: no preset of the Python modules with sanitizers: $preset" >&2; exit 2 ;;
esac

reports=$PWD/build/$preset/report
rm -f "$reports".*
export PYTHONPATH=$PWD/build/$preset/python STOWAGE_SANITIZER=$preset
# Their names are quoted, as a folder's may hold a space or a colon. Leaks are not looked for: Python keeps much until the process ends.
export ASAN_OPTIONS="log_path='$reports':abort_on_error=1:detect_leaks=0:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="log_path='$reports':abort_on_error=1:halt_on_error=1:print_stacktrace=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="log_path='$reports':suppressions='$PWD/tests/sanitizers/tsan.supp':history_size=4:second_deadlock_stack=1:die_after_fork=0:${TSAN_OPTIONS:-}"
status=0
LD_PRELOAD="$first $(library libstdc++.so)" .venv/bin/python -m pytest -p no:cacheprovider "$@" || status=$?
if compgen -G "$reports.*" >/dev/null; then
  cat "$reports".* >&2
  exit 1
fi
exit $status
