//! Parser of recipes: the result does not depend on where a recipe is split, and an accepted recipe
//! is the only one with its operations.
#![no_main]

use std::io::{self, BufReader, Read as _};

use samovar_protocol::recipe::{Operation, Reader, RecipeError};

/// Reads a recipe in pieces of `step` bytes, and writes it again.
fn rewrite(recipe: &[u8], step: usize) -> Result<Vec<u8>, RecipeError> {
    let of = |error: io::Error| RecipeError::of(&error).unwrap();
    let mut reader = Reader::new(BufReader::with_capacity(step, recipe));
    let mut written = b"samovar-recipe 1\n".to_vec();
    let mut size = 0;
    while let Some(operation) = reader.next_operation().map_err(of)? {
        match operation {
            Operation::Copy { offset, len } => {
                written.extend(format!("copy {offset} {len}\n").bytes());
                size += len;
            }
            Operation::Data { len } => {
                written.extend(format!("data {len}\n").bytes());
                let start = written.len();
                reader.read_to_end(&mut written).map_err(of)?;
                assert_eq!((written.len() - start) as u64, len);
                size += len;
            }
        }
    }
    written.extend(format!("end {size}\n").bytes());
    Ok(written)
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&step, recipe)) = data.split_first() else {
        return;
    };
    let found = rewrite(recipe, recipe.len().max(1));
    assert_eq!(found, rewrite(recipe, usize::from(step) + 1));
    if let Ok(written) = found {
        assert_eq!(written, recipe);
    }
});
