//! The reasons why a machine cannot run overlays, with their remedies.

use std::fs;

use anyhow::anyhow;
use rustix::io::Errno;
use samovar_client::failed::Failed;

/// The alternative that needs no kernel feature.
const ALTERNATIVE: &str = "or use samovar ws open, which works without overlays";

/// The step at which the kernel refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Creating a user and a mount namespace.
    Namespace,
    /// Mapping the user into the new user namespace.
    Map,
    /// Making mounts private.
    Propagation,
    /// Opening `/dev/fuse`.
    Fuse,
    /// Mounting the overlay.
    Overlay,
}

/// Facts about the machine that explain refusals.
#[derive(Debug, Clone, Default)]
struct Facts {
    /// `kernel.unprivileged_userns_clone`, of Debian's kernels.
    userns_clone: Option<i64>,
    /// `user.max_user_namespaces`.
    user_namespaces_max: Option<i64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, of Ubuntu.
    apparmor: Option<i64>,
    /// Major and minor version of the kernel.
    kernel: Option<(u32, u32)>,
    has_overlay: bool,
}

impl Facts {
    fn read() -> Self {
        let number = |file: &str| {
            let text = fs::read_to_string(format!("/proc/sys/{file}")).ok();
            text?.trim().parse().ok()
        };
        let uname = rustix::system::uname();
        let file_systems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        Self {
            userns_clone: number("kernel/unprivileged_userns_clone"),
            user_namespaces_max: number("user/max_user_namespaces"),
            apparmor: number("kernel/apparmor_restrict_unprivileged_userns"),
            kernel: version(&uname.release().to_string_lossy()),
            has_overlay: file_systems
                .lines()
                .any(|line| line.trim_end().ends_with("\toverlay")),
        }
    }

    fn reason(&self, step: Step, errno: Errno) -> String {
        let is_denied = matches!(errno, Errno::PERM | Errno::ACCESS);
        match step {
            Step::Namespace if self.userns_clone == Some(0) => {
                "the kernel forbids user namespaces: an administrator can permit them by sysctl \
                 -w kernel.unprivileged_userns_clone=1"
                    .to_owned()
            }
            Step::Namespace if self.user_namespaces_max == Some(0) => {
                "the kernel forbids user namespaces: an administrator can permit them by sysctl \
                 -w user.max_user_namespaces=10000"
                    .to_owned()
            }
            Step::Namespace if errno == Errno::NOSPC => {
                "there are too many user namespaces: an administrator can permit more by the \
                 sysctl user.max_user_namespaces"
                    .to_owned()
            }
            Step::Namespace if matches!(errno, Errno::INVAL | Errno::NOSYS) => {
                "this kernel has no user namespaces: run the command as root".to_owned()
            }
            Step::Namespace | Step::Map | Step::Propagation | Step::Overlay
                if is_denied && self.apparmor.is_some_and(|value| value != 0) =>
            {
                "AppArmor forbids mounts in user namespaces, as on Ubuntu since 24.04: an \
                 administrator can permit them by sysctl -w \
                 kernel.apparmor_restrict_unprivileged_userns=0, or by an AppArmor profile for \
                 samovar with the rule userns"
                    .to_owned()
            }
            Step::Namespace | Step::Map | Step::Propagation => format!(
                "the system forbids user namespaces ({errno}); if this is a container, its seccomp \
                 profile must permit unshare and mount, as in docker run --security-opt \
                 seccomp=unconfined, or its root needs --cap-add SYS_ADMIN"
            ),
            Step::Fuse if matches!(errno, Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
                "there is no /dev/fuse: an administrator can load the module by modprobe fuse; a \
                 container needs --device /dev/fuse"
                    .to_owned()
            }
            Step::Fuse if is_denied => {
                "this user may not open /dev/fuse: an administrator can permit it by chmod 0666 \
                 /dev/fuse, which is the default of udev"
                    .to_owned()
            }
            Step::Fuse => format!("cannot open /dev/fuse ({errno})"),
            Step::Overlay if errno == Errno::NODEV || !self.has_overlay => {
                "this kernel has no overlayfs: an administrator can load it by modprobe overlay"
                    .to_owned()
            }
            Step::Overlay if is_denied && self.kernel.is_some_and(|kernel| kernel < (5, 11)) => {
                "users may mount overlayfs only since Linux 5.11: run the command as root"
                    .to_owned()
            }
            Step::Overlay => format!(
                "the kernel refuses the overlay ({errno}); the reason is in its log, see dmesg"
            ),
        }
    }
}

/// Returns the error for a refusal of the kernel, with the reason and the remedy.
pub fn refusal(step: Step, errno: Errno) -> anyhow::Error {
    let reason = Facts::read().reason(step, errno);
    Failed::Unavailable.because(anyhow!("{reason}; {ALTERNATIVE}"))
}

/// Checks that this user may open `/dev/fuse`.
///
/// # Errors
///
/// The reason why not, and the remedy.
pub fn check_fuse() -> anyhow::Result<()> {
    use rustix::fs::{Mode, OFlags};
    match rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => Ok(()),
        Err(errno) => Err(refusal(Step::Fuse, errno)),
    }
}

/// Parses the release of a kernel, as in `5.10.0-28-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            kernel: Some((6, 8)),
            has_overlay: true,
            user_namespaces_max: Some(100),
            ..Facts::default()
        }
    }

    #[test]
    fn each_refusal_has_its_reason_and_remedy() {
        let old = Facts {
            kernel: Some((5, 10)),
            ..facts()
        };
        let cases = [
            (
                Facts {
                    userns_clone: Some(0),
                    ..facts()
                },
                Step::Namespace,
                Errno::PERM,
                "kernel.unprivileged_userns_clone=1",
            ),
            (
                Facts {
                    user_namespaces_max: Some(0),
                    ..facts()
                },
                Step::Namespace,
                Errno::NOSPC,
                "user.max_user_namespaces=10000",
            ),
            (facts(), Step::Namespace, Errno::NOSPC, "too many"),
            (facts(), Step::Namespace, Errno::INVAL, "no user namespaces"),
            (facts(), Step::Namespace, Errno::PERM, "seccomp"),
            (
                Facts {
                    apparmor: Some(1),
                    ..facts()
                },
                Step::Map,
                Errno::PERM,
                "Ubuntu since 24.04",
            ),
            (
                Facts {
                    apparmor: Some(1),
                    ..facts()
                },
                Step::Overlay,
                Errno::ACCESS,
                "kernel.apparmor_restrict_unprivileged_userns=0",
            ),
            (facts(), Step::Fuse, Errno::NOENT, "--device /dev/fuse"),
            (facts(), Step::Fuse, Errno::ACCESS, "chmod 0666 /dev/fuse"),
            (facts(), Step::Overlay, Errno::NODEV, "modprobe overlay"),
            (old, Step::Overlay, Errno::PERM, "since Linux 5.11"),
            (facts(), Step::Overlay, Errno::INVAL, "dmesg"),
        ];
        for (facts, step, errno, expected) in cases {
            let reason = facts.reason(step, errno);
            assert!(reason.contains(expected), "{reason}");
            assert!(!reason.contains('\n'), "{reason}");
        }
    }

    #[test]
    fn versions_of_kernels() {
        assert_eq!(version("5.10.0-28-amd64"), Some((5, 10)));
        assert_eq!(version("6.18.44"), Some((6, 18)));
        assert_eq!(version("6.8-rc1"), Some((6, 8)));
        assert_eq!(version(""), None);
    }
}
