#!/bin/bash
# Tests the Debian package under a real systemd, in separate namespaces. It uses this machine's files
# through an overlay and changes none of them. Needs root, systemd and nix-bin.
#
#   cargo run -p xtask -- deb /tmp/deb && contrib/systemd/try.sh /tmp/deb/samovar_*.deb
#
# Prints "all is well", or the first failure.
set -eu
package=$(realpath "$1")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/layers" "$dir/root" "$dir/out"
cp "$package" "$dir/out/package.deb"

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
echo 'build-users-group =' > /etc/nix/nix.conf
nix-daemon 2> /dev/null &
daemon=/nix/var/nix/daemon-socket/socket
soon test -S $daemon
echo hello > /tmp/hello
path=$(nix-store --add /tmp/hello)
hash=${path:11:32}
nix-store --generate-binary-cache-key one-1 /tmp/one.secret /tmp/one
nix-store --generate-binary-cache-key two-1 /tmp/two.secret /tmp/two

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
systemctl reload samovar.service
cp /tmp/two.secret /etc/nix/cache.secret
systemctl restart samovar.service
signed two-1 || fails "another credential is used after a restart"

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
systemctl restart samovar.service
touch /tmp/stop
wait $load
read -r count bad < /tmp/count
echo "three upgrades in place and a restart: $count requests, $bad failed"
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

dpkg --purge samovar > /dev/null 2>&1
[ ! -e /etc/samovar ] && [ ! -e /usr/bin/samovar ] || fails "it is removed"
systemctl is-active -q samovar.socket && fails "its socket is closed"
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
