//! [`Content`]: checks and hashes the NAR in an upload.

use samovar_nix::NarHash;
use samovar_nix::nar::{Decoder, Event};

use super::hasher::Hasher;
use super::listing::Builder;
use super::{Limits, Refusal};

/// Checks and hashes a NAR that arrives in pieces.
pub(super) struct Content<'a> {
    limits: &'a Limits,
    hasher: Hasher,
    decoder: Decoder,
    listing: Builder,
    /// Number of bytes of the NAR received so far.
    len: u64,
}

impl<'a> Content<'a> {
    pub(super) fn new(limits: &'a Limits) -> Self {
        Self {
            limits,
            hasher: Hasher::new(),
            decoder: Decoder::new(),
            listing: Builder::new(),
            len: 0,
        }
    }

    /// Checks and hashes the next piece of the NAR.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotANar`], [`Refusal::BytesAfterNar`], [`Refusal::TooLarge`].
    pub(super) fn push(&mut self, mut piece: &[u8]) -> Result<(), Refusal> {
        self.len = self.len.saturating_add(piece.len() as u64);
        self.check_size(self.len)?;
        self.hasher.update(piece);
        while let Some(event) = self.decoder.decode(&mut piece).map_err(Refusal::NotANar)? {
            if let Event::File { size, offset, .. } = event {
                // Refuse a file that will exceed the limit as soon as its length is known.
                let end = offset.saturating_add(size);
                if end > self.limits.nar_size_max {
                    return Err(self.too_large());
                }
            }
            self.listing.event(&event);
        }
        if piece.is_empty() {
            return Ok(());
        }
        let nar_size = self.decoder.offset();
        Err(Refusal::BytesAfterNar { nar_size })
    }

    /// Returns the number of bytes of the NAR received so far.
    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    /// Checks that the NAR so far is not too long for the number of compressed bytes received.
    ///
    /// # Errors
    ///
    /// [`Refusal::Ratio`] if the NAR is too long.
    pub(super) fn check_ratio(&self, received: u64) -> Result<(), Refusal> {
        let (ratio, free_len) = (self.limits.ratio_max, self.limits.ratio_free_len);
        let len_max = received.saturating_mul(ratio).saturating_add(free_len);
        if self.len > len_max {
            return Err(Refusal::Ratio { ratio, free_len });
        }
        Ok(())
    }

    /// Ends the NAR. Returns its hash, its length and its listing, which is `None` if it exceeds a
    /// limit.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotANar`] if the NAR is incomplete.
    pub(super) fn finish(self) -> Result<(NarHash, u64, Option<Vec<u8>>), Refusal> {
        let len = self.decoder.finish().map_err(Refusal::NotANar)?;
        let nar_hash = NarHash::from_bytes(self.hasher.finish());
        Ok((nar_hash, len, self.listing.finish()))
    }

    fn check_size(&self, len: u64) -> Result<(), Refusal> {
        if len > self.limits.nar_size_max {
            return Err(self.too_large());
        }
        Ok(())
    }

    const fn too_large(&self) -> Refusal {
        Refusal::TooLarge {
            limit: self.limits.nar_size_max,
        }
    }
}
