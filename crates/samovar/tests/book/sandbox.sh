# Runs the script of a page in a root file system of its own, in new user, mount, network and PID
# namespaces. The store is the sample store, below a layer that is discarded.
# Arguments: an empty directory, the sample store, the program, the file of the page's script.
set -eu
root=$1 sample=$2 program=$3 script=$4

mount --make-rprivate /
mount -t tmpfs tmpfs "$root"
cd "$root"
mkdir -m 1777 tmp
mkdir -p dev etc/nix etc/samovar home/mr layer/files layer/work nix proc run srv sys usr var/log var/tmp
# Where Nix has build users, it may have given the store's directory to their group, which is not
# mapped here: the kernel refuses to copy such a directory to the upper layer.
mkdir layer/files/store
mount --rbind /usr usr
mount -o remount,bind,ro usr
mount -t tmpfs tmpfs usr/local
mkdir usr/local/bin
for name in bin lib lib32 lib64 libx32 sbin; do
    [ ! -e "usr/$name" ] || ln -s "usr/$name" "$name"
done
mount -t proc proc proc
mount --rbind /dev dev
for name in alternatives ssl; do
    [ ! -d "/etc/$name" ] || { mkdir "etc/$name"; mount --bind "/etc/$name" "etc/$name"; }
done
cp /etc/ld.so.cache etc/
echo 'root:x:0:0::/home/mr:/bin/bash' >etc/passwd
echo 'root:x:0:' >etc/group
echo 'hosts: files' >etc/nsswitch.conf
echo '127.0.0.1 localhost cache.example.org attic.example.org' >etc/hosts
printf '%s\n' 'build-users-group =' 'sandbox = false' 'substituters =' \
    'experimental-features = nix-command' >etc/nix/nix.conf
mount -t overlay overlay -o "userxattr,lowerdir=$sample/nix,upperdir=layer/files,workdir=layer/work" nix
: >usr/local/bin/samovar
mount --bind "$program" usr/local/bin/samovar
: >tmp/page.sh
mount --bind "$script" tmp/page.sh
if [ -d "$sample/../nix" ]; then
    mkdir -p opt/nix
    mount --rbind "$sample/../nix" opt/nix
fi
if [ -x "$sample/../tools/bin/s3s-fs" ]; then
    : >usr/local/bin/s3s-fs
    mount --bind "$sample/../tools/bin/s3s-fs" usr/local/bin/s3s-fs
fi
ip link set lo up
# With a loopback address alone, Nix gives up connections after a second.
ip address add 198.51.100.1/32 dev lo
hostname desktop
mkdir old
# A process in a chroot directory could not make user namespaces.
pivot_root . old
exec env -i HOME=/home/mr PATH=/usr/local/bin:/usr/bin:/usr/sbin LANG=C.UTF-8 \
    chroot . sh -c 'umount -l /old && rmdir /old && exec bash /tmp/page.sh'
