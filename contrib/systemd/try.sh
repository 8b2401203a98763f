#!/bin/bash
# Tests the Debian package, the units of the NixOS module, and the unit of NixOS's own module for nix-serve
# under a real systemd, in separate namespaces. It uses this machine's files through an overlay and changes
# none of them. Needs root, systemd, nix-bin, nginx, curl and openssl.
#
#   cargo run -p xtask -- deb /tmp/deb && contrib/systemd/try.sh /tmp/deb/samovar_*.deb
#   cargo run -p xtask -- deb --try    # the same with debug programs
#
# Prints "all is well", or the first failure.
set -eu
package=$(realpath "$1")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/layers" "$dir/root" "$dir/out"
cp "$package" "$dir/out/package.deb"
cp -r "$(dirname "$0")/../../nix" "$dir/out/nix"

# Script of the first process: sets up a machine with a store, whose only target is the test.
cat > "$dir/boot" <<'X'
set -eu
cd "$1"
mount --make-rprivate /
mount -t tmpfs layers layers
mkdir layers/upper layers/work
mount -t overlay overlay -o lowerdir=/,upperdir=layers/upper,workdir=layers/work root
mount -t proc proc root/proc
mount --bind root/proc/sys root/proc/sys
mount -o remount,bind,ro root/proc/sys
mount -t sysfs -o ro sys root/sys
for tmpfs in run tmp dev sys/fs/cgroup; do mount -t tmpfs tmpfs root/$tmpfs; done
mkdir root/dev/shm root/dev/pts root/dev/mqueue root/sys/fs/cgroup/systemd root/out
while read -r name minor major; do mknod -m 666 root/dev/$name c $major $minor; done <<Y
null 3 1
zero 5 1
full 7 1
random 8 1
urandom 9 1
tty 0 5
Y
ln -s /proc/self/fd root/dev/fd
mount -t devpts -o newinstance,ptmxmode=0666 devpts root/dev/pts
ln -s pts/ptmx root/dev/ptmx
mount -t cgroup -o none,name=systemd,xattr systemd root/sys/fs/cgroup/systemd
mount --bind out root/out
ip link set lo up
chroot root dpkg -i /out/package.deb > out/dpkg 2>&1
units=root/etc/systemd/system
mkdir -p $units/samovar.service.d
printf '[Service]\nStandardError=append:/out/log\n' > $units/samovar.service.d/log.conf
for unit in systemd-udevd.service systemd-udev-trigger.service systemd-modules-load.service \
    systemd-sysctl.service systemd-remount-fs.service sys-kernel-debug.mount \
    sys-kernel-tracing.mount sys-fs-fuse-connections.mount dev-mqueue.mount dev-hugepages.mount; do
    ln -sf /dev/null $units/$unit
done
cat > $units/try.service <<Y
[Service]
Type=oneshot
ExecStart=/bin/bash /out/try
StandardOutput=append:/out/said
StandardError=append:/out/said
Y
mkdir root/oldroot
cd root
pivot_root . oldroot
umount -l /oldroot
mount --make-rshared /
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --unit=try.service --log-target=null --show-status=no
X

cat > "$dir/out/try" <<'X'
set -eu
trap 'touch /out/done' EXIT
export HOME=/root
fails() { echo "FAILED: $*"; exit 1; }
get() { curl -sS -f -m 20 "http://localhost:5000/$1"; }
main() { systemctl show samovar.service -p MainPID --value; }
# Retries a command for 30 s, until it succeeds.
soon() { for _ in $(seq 150); do "$@" && return; sleep 0.2; done; fails "$*"; }
is_other() { [ "$(main)" != "$1" ] && [ "$(main)" != 0 ]; }
signed() { get "$hash.narinfo" | grep -q "^Sig: $1:"; }

mkdir -p /etc/nix
printf 'build-users-group =\nexperimental-features = nix-command\n' > /etc/nix/nix.conf
nix-daemon 2> /dev/null &
daemon=/nix/var/nix/daemon-socket/socket
soon test -S $daemon
echo hello > /tmp/hello
path=$(nix-store --add /tmp/hello)
hash=${path:11:32}
head -c 64M /dev/urandom > /tmp/big
big=$(nix-store --add /tmp/big)
bighash=${big:11:32}
nix-store --store dummy:// --generate-binary-cache-key one-1 /tmp/one.secret /tmp/one
nix-store --store dummy:// --generate-binary-cache-key two-1 /tmp/two.secret /tmp/two

systemctl enable --now samovar.socket 2> /dev/null
get nix-cache-info > /dev/null || fails "the socket starts the service"
get "nar/$hash.nar" | cmp - <(nix-store --dump "$path") || fails "the NAR is right"

cp /tmp/one.secret /etc/nix/cache.secret
printf '[Service]\nLoadCredential=key:/etc/nix/cache.secret\n' \
    > /etc/systemd/system/samovar.service.d/key.conf
sed -i 's/^#secret-key-files/secret-key-files/' /etc/samovar/samovar.toml
systemctl daemon-reload
systemctl restart samovar.service
signed one-1 || fails "it signs with its credential"
nix copy --from http://localhost:5000 --to /tmp/copy "$path" \
    --option trusted-public-keys "$(cat /tmp/one)" || fails "Nix copies a path and trusts the key"
samovar doctor > /tmp/doctor || true
grep -q "^ok .* key: the cache signs with one-1:" /tmp/doctor || fails "doctor alone: $(cat /tmp/doctor)"
grep -q "^ok .* round trip: http://127.0.0.1:5000" /tmp/doctor || fails "doctor alone: $(cat /tmp/doctor)"
for page in nix-serve samovar samovar-serve; do
    man "$page" | grep SYNOPSIS > /dev/null || fails "the man page $page"
done
systemctl reload samovar.service
cp /tmp/two.secret /etc/nix/cache.secret
systemctl restart samovar.service
signed two-1 || fails "another credential is used after a restart"

mkdir -p /etc/systemd/system/samovar.socket.d
printf '[Socket]\nListenStream=\nListenStream=127.0.0.1:5000\n' \
    > /etc/systemd/system/samovar.socket.d/address.conf
systemctl daemon-reload
systemctl restart samovar.socket
curl -sS -f -m 20 http://127.0.0.1:5000/nix-cache-info > /dev/null || fails "another address"
curl -sS -f -m 20 'http://[::1]:5000/nix-cache-info' > /dev/null 2>&1 \
    && fails "the first address is closed"
samovar doctor > /tmp/doctor || true
grep -q "^ok .* socket unit: samovar.socket listens on 127.0.0.1:5000" /tmp/doctor \
    && grep -q "^ok .* round trip: http://127.0.0.1:5000" /tmp/doctor \
    || fails "doctor at another address: $(cat /tmp/doctor; systemctl show samovar.socket -p Listen)"
SAMOVAR_LISTEN=127.0.0.1:5005 samovar doctor > /tmp/doctor && fails "doctor accepts another listen"
grep -q "^error .* socket unit: samovar.socket listens on 127.0.0.1:5000, but" /tmp/doctor \
    || fails "doctor with another listen: $(cat /tmp/doctor)"
rm -r /etc/systemd/system/samovar.socket.d
systemctl daemon-reload
systemctl restart samovar.socket
# Starts the service: a signal would end a process that is still starting.
get nix-cache-info > /dev/null || fails "the first address is open again"

count=0 bad=0
while [ ! -e /tmp/stop ]; do
    count=$((count + 1))
    get "$hash.narinfo" > /dev/null || bad=$((bad + 1))
    echo $count $bad > /tmp/count
    sleep 0.02
done &
load=$!
for _ in 1 2 3; do
    before=$(main)
    systemctl kill -s USR2 --kill-who=main samovar.service
    soon is_other "$before"
    # The old process ends after it has sent its responses.
    soon test ! -e "/proc/$before"
done
before=$(main)
dpkg-deb -R /out/package.deb /tmp/later
sed -i 's/^Version: .*/&+later/' /tmp/later/DEBIAN/control
dpkg-deb --root-owner-group -Znone --build /tmp/later /tmp/later.deb > /dev/null
dpkg -i /tmp/later.deb > /tmp/upgraded 2>&1 || fails "the package is upgraded: $(cat /tmp/upgraded)"
grep -q "replacing the running server" /tmp/upgraded || fails "the upgrade says so: $(cat /tmp/upgraded)"
soon is_other "$before"
soon test ! -e "/proc/$before"
# A download that takes longer than the restart, at the old process of an upgrade and at the new one.
slow() { curl -sS --limit-rate 1M "http://localhost:5000/nar/$bighash.nar" > /dev/null 2>&1 & }
slow
sleep 1
before=$(main)
systemctl kill -s USR2 --kill-who=main samovar.service
soon is_other "$before"
slow
sleep 1
[ -e "/proc/$before" ] || fails "the old process finishes its download"
began=$(date +%s)
systemctl restart samovar.service
took=$(($(date +%s) - began))
[ ! -e "/proc/$before" ] || fails "the restart ends the old process of an upgrade"
[ $took -le 15 ] || fails "a restart under slow downloads takes $took s"
sleep 1
touch /tmp/stop
wait $load
read -r count bad < /tmp/count
echo "four upgrades in place, one of the package and a restart of $took s: $count requests, $bad failed"
[ "$bad" = 0 ] || fails "a request under upgrades and a restart"

before=$(main)
systemctl kill -s KILL --kill-who=main samovar.service
soon is_other "$before"
get nix-cache-info > /dev/null || fails "it is back after KILL"
printf '[Service]\nWatchdogSec=3\nTimeoutAbortSec=2\n' \
    > /etc/systemd/system/samovar.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart samovar.service
before=$(main)
sleep 7
is_other "$before" && fails "the watchdog lets a healthy server be"
systemctl kill -s STOP --kill-who=main samovar.service
soon is_other "$before"
get nix-cache-info > /dev/null || fails "it is back after the watchdog"

cp /usr/bin/samovar /usr/bin/nix-serve /tmp/
dpkg --purge samovar > /dev/null 2>&1
[ ! -e /etc/samovar ] && [ ! -e /usr/bin/samovar ] || fails "it is removed"
systemctl is-active -q samovar.socket && fails "its socket is closed"

# The units of the NixOS module: keys, certificate and users as credentials, and a second socket.
mkdir -p /stand-in/samovar/bin /stand-in/coreutils/bin /var/keys /etc/systemd/system
cp /tmp/samovar /stand-in/samovar/bin/
ln -s /bin/kill /stand-in/coreutils/bin/
cp /tmp/two.secret /var/keys/cache.secret
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost -keyout /var/keys/key.pem -out /var/keys/cert.pem 2> /dev/null
echo secret | /tmp/samovar password alice > /var/keys/users
chmod 600 /var/keys/*
# Prints an attribute of what the module makes of options.
module() {
    nix eval --raw --impure --expr "((import /out/nix/stand-in/lib.nix).evaluate {
      module = /out/nix/module.nix;
      given = { enable = true; $2 };
    }).$1" 2> /dev/null
}
install_units() {
    module service "$1" > /etc/systemd/system/samovar.service
    module socket "$1" > /etc/systemd/system/samovar.socket
    systemctl daemon-reload
    systemctl start samovar.socket
}
mkdir -p /etc/systemd/system/samovar.service.d
printf '[Service]\nStandardError=append:/out/log\n' > /etc/systemd/system/samovar.service.d/log.conf
install_units 'secretKeyFiles = [ "/var/keys/cache.secret" ];
    tls = { certificateFile = "/var/keys/cert.pem"; keyFile = "/var/keys/key.pem"; };
    usersFile = "/var/keys/users";
    extraSockets = [ "/run/samovar/socket" ];
    uploads.enable = true;
    settings.priority = 21;'
secure() { curl -sS -f -m 20 --cacert /var/keys/cert.pem "$@"; }
url=https://localhost:5000
secure $url/nix-cache-info > /dev/null 2>&1 && fails "NixOS: it asks for a password"
secure -u alice:secret $url/nix-cache-info | grep -q "Priority: 21" || fails "NixOS: settings"
secure -u alice:secret "$url/$hash.narinfo" | grep -q "^Sig: two-1:" || fails "NixOS: it signs"
curl -sS -f -m 20 -u alice:secret --unix-socket /run/samovar/socket http://localhost/nix-cache-info \
    > /dev/null || fails "NixOS: its second socket"
[ -d /var/lib/samovar/storage ] || fails "NixOS: the storage"
systemctl reload samovar.service || fails "NixOS: reload"
systemctl stop samovar.service samovar.socket

# The virtual host of the NixOS module: the log has the address of the client.
nginx='nginx.hostName = "localhost"; settings.log.access = "/var/lib/samovar/access.log";'
install_units "$nginx"
{
    echo 'user root; events { } http { upstream samovar { server 127.0.0.1:5000;'
    module 'nginx.upstreams.samovar.extraConfig' "$nginx"
    echo '} server { listen 127.0.0.7:8000; location / {'
    echo 'proxy_pass http://samovar;'
    module 'nginx.virtualHosts.localhost.locations."/".extraConfig' "$nginx"
    echo '} } }'
} > /tmp/nginx.conf
nginx -c /tmp/nginx.conf 2> /tmp/nginx.log || fails "NixOS: nginx: $(cat /tmp/nginx.log)"
curl -sS -f -m 20 --interface 127.0.0.9 http://127.0.0.7:8000/nix-cache-info > /dev/null \
    || fails "NixOS: through nginx"
logged() { grep -q "^127.0.0.9 " /var/lib/samovar/access.log; }
soon logged
nginx -c /tmp/nginx.conf -s stop
systemctl stop samovar.service samovar.socket

# `services.nix-serve` of NixOS with `package = pkgs.samovar`: its unit, as nixpkgs writes it.
cat > /tmp/nix-serve-start <<Y
#!/bin/sh
export NIX_SECRET_KEY_FILE="\$CREDENTIALS_DIRECTORY/NIX_SECRET_KEY_FILE"
exec /stand-in/samovar/bin/nix-serve --listen 0.0.0.0:5000 --priority 22
Y
install -m 755 /tmp/nix-serve-start /tmp/nix-serve /stand-in/samovar/bin/
cat > /etc/systemd/system/nix-serve.service <<Y
[Unit]
Description=nix-serve binary cache server
After=network.target
[Service]
Environment=NIX_REMOTE=daemon
ExecStart=/stand-in/samovar/bin/nix-serve-start
Restart=always
RestartSec=5s
User=nix-serve
Group=nix-serve
DynamicUser=true
LoadCredential=NIX_SECRET_KEY_FILE:/var/keys/cache.secret
Y
systemctl daemon-reload
systemctl start nix-serve.service
is_up() { get nix-cache-info 2> /dev/null | grep -q "Priority: 22"; }
soon is_up
signed two-1 || fails "NixOS: nix-serve signs"
get "nar/$hash.nar" | cmp - <(nix-store --dump "$path") || fails "NixOS: nix-serve's NAR is right"
systemctl stop nix-serve.service
echo "all is well"
X

unshare --mount --pid --net --ipc --uts --cgroup --fork --kill-child \
    bash "$dir/boot" "$dir" > "$dir/out/boot" 2>&1 &
machine=$!
for _ in $(seq 300); do
    [ ! -e "$dir/out/done" ] && kill -0 $machine 2> /dev/null || break
    sleep 0.5
done
# Kills the first process of the namespace, which ends all others in it.
kill -KILL $machine 2> /dev/null || true
wait $machine 2> /dev/null || true
cat "$dir/out/said" 2> /dev/null || cat "$dir/out/boot"
grep -q "all is well" "$dir/out/said" || { cat "$dir/out/log"; exit 1; }
