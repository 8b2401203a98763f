//! Dependency graphs of packages: writes their derivations, and imports outputs instead of building
//! them.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use testkit::random::SplitMix64;

use super::store::{Derivation, Features, Import, Store};
use super::trees;

/// A package: its name, and the indices of its references, all of which precede it.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) name: String,
    pub(crate) inputs: Vec<usize>,
    /// Number of bytes that the package has in addition to its program and its manual.
    pub(crate) library_len: u64,
}

/// Generates `layers` layers of `width` packages. Each package refers to three packages of the
/// layer below. The last package, `top`, refers to the whole last layer, so its closure contains
/// all packages.
///
/// The graph has layers instead of one chain because a client discovers paths through narinfos: in
/// a chain it could never send concurrent requests, unlike with real closures.
pub(crate) fn layers(prefix: &str, layers: usize, width: usize) -> Vec<Recipe> {
    let mut recipes = Vec::new();
    for layer in 0..layers {
        for place in 0..width {
            let mut inputs = Vec::new();
            if let Some(below) = layer.checked_sub(1) {
                // The package directly below is always one of them, so that every package is
                // referenced.
                inputs = [place, (place * 3 + 1) % width, (place + layer) % width]
                    .map(|place| below * width + place)
                    .to_vec();
                inputs.sort_unstable();
                inputs.dedup();
            }
            recipes.push(Recipe {
                name: format!("{prefix}-{layer}-{place}"),
                inputs,
                library_len: 0,
            });
        }
    }
    let last = layers.saturating_sub(1) * width;
    recipes.push(Recipe {
        name: format!("{prefix}-top"),
        inputs: (last..last + width).collect(),
        library_len: 0,
    });
    recipes
}

/// Gives the packages libraries of 4 KiB to 2 MiB; each power of two is equally frequent.
pub(crate) fn with_libraries(mut recipes: Vec<Recipe>, seed: u64) -> Vec<Recipe> {
    let mut random = SplitMix64::new(seed);
    for recipe in &mut recipes {
        let len = 4096 << random.index(9);
        recipe.library_len = len + random.next() % len;
    }
    recipes
}

/// Generates `count` packages with up to 20 references each to packages that shortly precede them.
pub(crate) fn many(prefix: &str, count: usize, seed: u64) -> Vec<Recipe> {
    let mut random = SplitMix64::new(seed);
    (0..count)
        .map(|index| {
            let near = index.min(200);
            let wanted = if near == 0 { 0 } else { random.index(21) };
            let mut inputs: Vec<usize> = (0..wanted)
                .map(|_| index - 1 - random.index(near))
                .collect();
            inputs.sort_unstable();
            inputs.dedup();
            Recipe {
                name: format!("{prefix}-{index}"),
                inputs,
                library_len: 0,
            }
        })
        .collect()
}

/// Writes the `.drv` files of `recipes` and registers an output for each, without building.
///
/// Building three hundred packages in sandboxes takes ten seconds, and sandboxes are not allowed
/// everywhere.
pub(crate) fn register(store: &Store, recipes: &[Recipe]) -> Result<Vec<Derivation>> {
    let derivations = store
        .instantiate(Features::Stable, &expression(recipes))
        .context("cannot make the graph")?;
    let outputs: Vec<&str> = derivations
        .iter()
        .filter_map(|derivation| derivation.outputs.get("out").map(String::as_str))
        .collect();
    let imports = recipes.iter().zip(&derivations).zip(&outputs).enumerate();
    let imports: Vec<Import> = imports
        .map(|(index, ((recipe, derivation), own_path))| {
            let inputs: Vec<&str> = recipe
                .inputs
                .iter()
                .filter_map(|&input| outputs.get(input).copied())
                .collect();
            let node = trees::package(index as u64, own_path, &inputs, recipe.library_len);
            let own = trees::names_itself(index as u64).then_some(own_path);
            Import {
                path: (*own_path).to_owned(),
                node,
                references: inputs
                    .iter()
                    .chain(own)
                    .map(|path| (*path).to_owned())
                    .collect(),
                deriver: derivation.drv.clone(),
            }
        })
        .collect();
    store
        .import(&imports)
        .context("cannot register the graph")?;
    Ok(derivations)
}

/// Returns a Nix list of derivations, which refer to their inputs by index.
fn expression(recipes: &[Recipe]) -> String {
    let mut text = String::from(
        "let at = builtins.elemAt all; make = name: inputs: derivation { inherit name inputs; \
         system = \"x86_64-linux\"; builder = \"/bin/sh\"; args = [ \"-c\" \"make install\" ]; }; \
         all = [\n",
    );
    for Recipe { name, inputs, .. } in recipes {
        let inputs = inputs.iter().fold(String::new(), |mut text, input| {
            // Writing to a `String` never fails.
            write!(text, "(at {input}) ").ok();
            text
        });
        writeln!(text, "(make \"{name}\" [ {inputs}])").ok();
    }
    text.push_str("]; in all");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_reaches_all_layers() {
        let recipes = layers("lib", 33, 10);
        assert_eq!(recipes.len(), 331);
        let mut reached = vec![false; recipes.len()];
        let mut waiting = vec![recipes.len() - 1];
        while let Some(index) = waiting.pop() {
            if !std::mem::replace(&mut reached[index], true) {
                waiting.extend(&recipes[index].inputs);
            }
        }
        assert!(reached.iter().all(|&reached| reached));
    }

    #[test]
    fn references_come_before_their_referrer() {
        for recipes in [layers("a", 4, 3), many("b", 500, 1)] {
            for (index, recipe) in recipes.iter().enumerate() {
                assert!(
                    recipe.inputs.iter().all(|&input| input < index),
                    "{recipe:?}"
                );
                assert!(recipe.inputs.len() <= 20);
            }
        }
    }
}
