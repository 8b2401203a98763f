# Functions of the pages' scripts. `step`, `hidden` and `config` run the parts of a page; pages
# call the other functions in hidden comments.
set -u -E -o pipefail
cd
exec 2>&1
server=
output=/tmp/output

# Prints an error of the page and ends its test.
complain() {
    echo "line $at: $1"
    sed 's/^/    /' "$output"
    exit 1
}

# Writes a block to a file: PATH LINE TEXT.
file() {
    mkdir -p "$(dirname "$1")"
    printf '%s\n' "$3" >"$1"
    chmod 755 "$1"
}

# Runs a hidden comment: LINE TEXT. The output of the last command is in the file `last`.
hidden() {
    at=$1
    last=$output
    output=/tmp/output-$at
    : >"$output"
    set -e
    eval "$2"
    set +e
}

# Runs a command of the page: LINE TEXT. Its output goes to the test. A command that must fail has
# `fails=CODE` in a hidden comment before it.
fails=0
# Text of the page's commands, such as `smv1_…`, and what is run in its place: TEXT VALUE.
declare -A values
placeholder() { values[$1]=$2; }

# A command that starts with the text in `background` runs until it is killed.
background=none
# The next command is omitted if this is not empty.
omitted=
step() {
    at=$1
    if [ -n "$omitted" ]; then
        omitted=
        printf '\001%s\n\002\001\n' "$1"
        return
    fi
    output=/tmp/output-$at
    for text in "${!values[@]}"; do set -- "$1" "${2//"$text"/"${values[$text]}"}"; done
    if [[ $2 = "$background"* ]]; then
        background=none
        eval "$2" </dev/null >"$output" 2>&1 &
        until [ -s "$output" ]; do
            sleep 0.05
            kill -0 $! 2>/dev/null || complain "\`$2\` has ended:"
        done
        show "$1"
        return
    fi
    case "$2" in
    *--check-config* | *' --help'*) ;;
    'samovar serve '* | *'
samovar serve '*)
        serve "$2"
        show "$1"
        return
        ;;
    esac
    status=0
    trap 'status=$?' ERR
    eval "$2" </dev/null >"$output" 2>&1
    trap - ERR
    [ "$status" = "$fails" ] || complain "\`$2\` ended with exit code $status, not $fails:"
    fails=0
    show "$1"
}

# Prints the output of a command for the comparison with the page.
show() {
    printf '\001%s\n' "$1"
    cat "$output"
    printf '\n\001\n'
}

# Checks a TOML block: LINE TEXT. Relative paths are those of the page's directory.
config() {
    at=$1
    printf '%s\n' "$2" >.block.toml
    samovar serve --config .block.toml --check-config >"$output" 2>&1 ||
        complain 'the configuration is refused:'
    rm .block.toml
}

# Starts a server in the place of the one that runs, and waits until it serves.
serve() {
    stop
    # The output of the server before must not be taken for that of this one.
    : >/tmp/server
    eval "$1" </dev/null >/tmp/server 2>&1 &
    server=$!
    until grep -q ': serving ' /tmp/server; do
        sleep 0.05
        kill -0 "$server" 2>/dev/null || { cp /tmp/server "$output"; complain "\`$1\` has ended:"; }
    done
    cp /tmp/server "$output"
}

stop() {
    [ -z "$server" ] || {
        # The server is a child of the shell that runs a block.
        kill $(cat "/proc/$server/task/$server/children")
        wait "$server" 2>/dev/null
    }
    server=
}

# Creates the signing key cache.example.org-1.
keys() {
    nix-store --store dummy:// --generate-binary-cache-key cache.example.org-1 \
        cache.secret cache.public
    cp cache.secret /etc/nix/
}

# Creates a certificate of cache.example.org, which all clients trust.
certificate() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 \
        -subj /CN=cache.example.org -addext subjectAltName=DNS:cache.example.org,DNS:localhost \
        -addext basicConstraints=critical,CA:FALSE \
        -keyout key.pem -out cert.pem 2>/dev/null
    export NIX_SSL_CERT_FILE=$PWD/cert.pem CURL_CA_BUNDLE=$PWD/cert.pem
}

# Creates $2.pem and $2.key, a certificate of $1.
certificate_of() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 \
        -subj "/CN=$2" -addext "subjectAltName=DNS:$1" \
        -addext basicConstraints=critical,CA:FALSE \
        -keyout "$2.key" -out "$2.pem" 2>/dev/null
}

# Serves https://cache.example.org with uploads; more options may follow.
https_cache() {
    [ -e cache.secret ] || keys
    [ -e cert.pem ] || certificate
    serve "samovar serve --listen :443 --listen :5000 --storage /srv/samovar \
        --secret-key-files cache.secret --tls-certificate cert.pem --tls-key key.pem $*"
}

# Creates the link ./result and the flake attribute app, which Nix can build without a network.
project() {
    ln -sfn /nix/store/hl5n0dyxanq97s58pw3cjd32zkcg8nfi-built result
    echo 'experimental-features = nix-command flakes' >>/etc/nix/nix.conf
    cat >flake.nix <<FLAKE
{
  outputs = _: { packages.$(uname -m)-linux.app = derivation {
    name = "app-1.4"; system = "builtin"; builder = "builtin:buildenv"; derivations = "";
    manifest = "/none";
  }; };
}
FLAKE
}

# Ends the test of the page here: the machine lacks something.
skip() {
    printf '\001skipped: %s\n' "$1"
    exit
}

# Installs a program in the place of npm, which would need a network.
npm_without_network() {
    cat >/usr/local/bin/npm <<'NPM'
#!/bin/sh
mkdir -p node_modules
date +%N >node_modules/file
: >"node_modules/new-$(cat node_modules/file)"
NPM
    chmod 755 /usr/local/bin/npm
}

# Makes `nix` a version that sends client certificates, or omits the next command without one.
nix_with_certificates() {
    for loader in /opt/nix/*/root/usr/lib/*/ld-linux*; do
        nix() {
            "$loader" --library-path "${loader%/*}" --argv0 nix "${loader%/lib/*}/bin/nix" "$@"
        }
        [[ $(nix --version 2>/dev/null) != *' 2.'3[4-9].* ]] || return 0
    done
    unset -f nix
    omitted=1
}

# Prints a token with these rights.
token() {
    samovar token create --storage /srv/samovar --name "page-$RANDOM" --rights "$1" 2>/dev/null
}

# Starts PostgreSQL as db.example.org, in a user namespace of its own, because it refuses to run as
# root. The role postgres may do everything, without a password.
postgresql() {
    programs=$(echo /usr/lib/postgresql/*/bin/initdb | tr ' ' '\n' | tail -1)
    [ -x "$programs" ] || skip 'PostgreSQL is not installed'
    programs=${programs%/initdb}
    echo '127.0.0.1 db.example.org' >>/etc/hosts
    echo 'postgres:x:1000:1000::/srv/postgresql:/bin/sh' >>/etc/passwd
    unshare --user --map-user=1000 --map-group=1000 "$programs/initdb" --username=postgres \
        --auth=trust --no-sync --encoding=UTF8 --locale=C --pgdata=/srv/postgresql
    unshare --user --map-user=1000 --map-group=1000 "$programs/pg_ctl" start --wait \
        --pgdata=/srv/postgresql --log=/tmp/postgresql.log --options='-k /tmp -c fsync=off'
}

# Starts an S3 engine as s3.example.org:9000, with the bucket `cache`.
bucket() {
    [ -x /usr/local/bin/s3s-fs ] || skip 'there is no s3s-fs'
    echo '127.0.0.1 s3.example.org' >>/etc/hosts
    mkdir -p /srv/buckets/cache
    RUST_LOG=error s3s-fs --host 127.0.0.1 --port 9000 --access-key test --secret-key testtest \
        /srv/buckets >/tmp/s3s-fs.log 2>&1 &
    until : 2>/dev/null </dev/tcp/127.0.0.1/9000; do sleep 0.05; done
}
