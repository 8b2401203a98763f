//! Values attached to a request.

use std::any::Any;
use std::fmt;

/// A map with at most one value per type. Middleware uses it to pass values to handlers, such as
/// the authenticated user.
#[derive(Default)]
pub struct Extensions {
    /// Few values are expected, so a linear search is faster than hashing.
    values: Vec<Box<dyn Any + Send>>,
}

impl Extensions {
    /// The extensions of a request that no handler has got.
    pub(crate) const NONE: &Self = &Self { values: Vec::new() };

    /// Inserts a value; returns the value of the same type that it replaces, if any.
    pub fn insert<T: Send + 'static>(&mut self, value: T) -> Option<T> {
        if let Some(old) = self.get_mut::<T>() {
            return Some(std::mem::replace(old, value));
        }
        self.values.push(Box::new(value));
        None
    }

    /// Returns the value of type `T`; `None` if there is none.
    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.values.iter().find_map(|value| value.downcast_ref())
    }

    /// Returns a mutable reference to the value of type `T`; `None` if there is none.
    pub fn get_mut<T: 'static>(&mut self) -> Option<&mut T> {
        self.values
            .iter_mut()
            .find_map(|value| value.downcast_mut())
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} extensions", self.values.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_of_each_type() {
        let mut extensions = Extensions::default();
        assert_eq!(extensions.insert(1_u32), None);
        assert_eq!(extensions.insert("text"), None);
        assert_eq!(extensions.insert(2_u32), Some(1));
        assert_eq!(extensions.get::<u32>(), Some(&2));
        assert_eq!(extensions.get::<&str>(), Some(&"text"));
        assert_eq!(extensions.get::<u64>(), None);
    }
}
