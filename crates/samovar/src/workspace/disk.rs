//! Detects network file systems, on which a workspace would not have the speed of a local disk.

use std::path::Path;

/// Numbers of `statfs(2)` (`f_type`), with names for messages.
const NETWORK: [(u64, &str); 12] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x5346_414f, "AFS"),
    (0x564c, "NCP"),
    (0x7375_7245, "Coda"),
];

/// Returns the name of the network file system on which a path is, or will be. `None`: the file
/// system is local or unknown.
pub(super) fn network_file_system(path: &Path) -> Option<&'static str> {
    let existing = path.ancestors().find(|path| path.exists())?;
    let found = rustix::fs::statfs(existing).ok()?;
    // The type of the field depends on the architecture; 32 bits are significant.
    let kind = u64::try_from(found.f_type).ok()? & 0xffff_ffff;
    let network = NETWORK.iter().find(|(number, _)| *number == kind);
    network.map(|(_, name)| *name)
}
