//! An argument of a call.

use spec_core::Role;

use crate::tensor::Tensor;

/// An argument by its name in the contract.
#[derive(Clone, Debug)]
pub struct Argument {
    /// The name.
    pub name: &'static str,
    /// What the call does with the argument.
    pub role: Role,
    /// The argument's elements.
    pub tensor: Tensor,
}

/// The argument called `name`.
pub fn find<'a>(arguments: &'a [Argument], name: &str) -> Option<&'a Tensor> {
    arguments.iter().find(|argument| argument.name == name).map(|argument| &argument.tensor)
}
