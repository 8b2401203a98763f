//! Values that travel with a request.

use std::any::Any;
use std::fmt;

/// At most one value of each type: how a middleware hands something to the handlers behind it, such
/// as the user it has authenticated.
#[derive(Default)]
pub struct Extensions {
    /// Few, so a search is faster than a hash.
    values: Vec<Box<dyn Any + Send>>,
}

impl Extensions {
    /// Adds a value; returns the one of this type that was there.
    pub fn insert<T: Send + 'static>(&mut self, value: T) -> Option<T> {
        if let Some(old) = self.get_mut::<T>() {
            return Some(std::mem::replace(old, value));
        }
        self.values.push(Box::new(value));
        None
    }

    /// The value of this type.
    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.values.iter().find_map(|value| value.downcast_ref())
    }

    /// The value of this type.
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
