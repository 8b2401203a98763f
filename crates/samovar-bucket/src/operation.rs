//! The operations of an engine.

/// An operation of an engine, by its name in S3's billing and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `PutObject`
    Put,
    /// `GetObject`
    Get,
    /// `HeadObject`
    Head,
    /// `ListObjectsV2`
    List,
    /// `DeleteObject` and `DeleteObjects`
    Delete,
    /// `CreateMultipartUpload`, `UploadPart`, `CompleteMultipartUpload`, `AbortMultipartUpload`
    Multipart,
    /// Any other, which `doctor` tries.
    Other,
}

impl Operation {
    /// Number of operations.
    pub const COUNT: usize = 7;

    /// All operations.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Put,
        Self::Get,
        Self::Head,
        Self::List,
        Self::Delete,
        Self::Multipart,
        Self::Other,
    ];

    /// Returns the name in metrics: `put`, `get`, `head`, `list`, `delete`, `multipart`, `other`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Head => "head",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Multipart => "multipart",
            Self::Other => "other",
        }
    }

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_a_place() {
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation.index(), index);
        }
    }
}
