#!/bin/sh
# The accuracy gate, one step a call: sh accuracy/gate.sh install|dump|compare I/N|verdict|accept
# The same on every CI system and on your machine. Reports land in acc/.
set -eu

golden=${GOLDEN:-dumps/golden}
mine=${MINE:-dumps/mine}
baseline=${BASELINE:-accuracy/baseline.json}

case ${1:-} in
install)
    # ACC_PYTEST is what pip takes: a wheel, a checkout, or git+https://HOST/acc_pytest.git@COMMIT.
    package=${ACC_PYTEST:-$(find accuracy -name 'acc_pytest-*.whl')}
    if [ -z "$package" ]; then
        echo "gate.sh: no accuracy/acc_pytest-*.whl; make one with 'pip wheel --no-deps -w accuracy CLONE'," \
            "or set ACC_PYTEST" >&2
        exit 2
    fi
    python -m pip install --quiet -r accuracy/requirements.txt "$package"
    ;;
dump)
    python -m accuracy.dump "$golden" "$mine"
    ;;
compare)
    share=$2
    set --
    # There is a baseline from the day on which somebody commits one that `accept` made.
    [ ! -f "$baseline" ] || set -- --acc-baseline="$baseline"
    pytest -n auto --acc-golden="$golden" --acc-mine="$mine" --acc-shard="$share" \
        --acc-output=acc --acc-csv="shard-${share%/*}.csv" --acc-rows="acc/rows-${share%/*}.jsonl" \
        --junitxml="acc/junit-${share%/*}.xml" -o acc_junit_properties=none "$@"
    ;;
verdict)
    acc report merge acc/rows-*.jsonl --csv=acc/accuracy.csv --html=acc/accuracy.html \
        --junit=acc/accuracy.xml --summary=acc/accuracy.md --rows=acc/accuracy.jsonl
    ;;
accept)
    # Judges the rows again, without the dumps. 1 is a red run, which may be accepted too; 4 is a mistake.
    pytest --acc-from-rows=acc/accuracy.jsonl --acc-baseline="$baseline" --acc-update-baseline=all \
        --acc-output=acc --acc-csv=accepted.csv || [ $? -eq 1 ]
    ;;
*)
    echo "usage: sh accuracy/gate.sh install|dump|compare I/N|verdict|accept" >&2
    exit 2
    ;;
esac
