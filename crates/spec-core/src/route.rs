//! Which kernels a call runs.

use std::fmt;

/// The kernels that a call enqueues, in their order, as far as the host decides: see
/// [`Descriptor::route`](crate::Descriptor::route).
///
/// [`Display`](fmt::Display) writes the kernels with their launch shapes, as `topk_router_general
/// (16 blocks of 256 threads), topk_router_load (8 blocks of 1024 threads)`. The names and the words
/// are for people and for tests: they change with the kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    kernel: String,
    shape: String,
    /// How many times in a row the kernel is enqueued with this shape.
    times: usize,
}

impl Route {
    /// Appends a kernel with its launch shape in words. For backends.
    pub fn push(&mut self, kernel: &str, shape: impl fmt::Display) {
        let shape = shape.to_string();
        match self.steps.last_mut() {
            Some(last) if last.kernel == kernel && last.shape == shape => last.times += 1,
            _ => self.steps.push(Step { kernel: kernel.to_owned(), shape, times: 1 }),
        }
    }

    /// The names of the kernels, in their order. A kernel that follows itself with the same launch
    /// shape is named once.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(|step| step.kernel.as_str())
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps.is_empty() {
            return f.write_str("no kernel");
        }
        for (i, Step { kernel, shape, times }) in self.steps.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{kernel} ({shape})")?;
            if *times > 1 {
                write!(f, " {times} times")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_says_kernels_shapes_and_repetitions() {
        let mut route = Route::default();
        assert_eq!(route.to_string(), "no kernel");
        route.push("survey", "4 blocks");
        for blocks in [8, 8, 2, 8] {
            route.push("pass", format_args!("{blocks} blocks"));
        }
        let words = "survey (4 blocks), pass (8 blocks) 2 times, pass (2 blocks), pass (8 blocks)";
        assert_eq!(route.to_string(), words);
        assert_eq!(route.kernels().collect::<Vec<_>>(), ["survey", "pass", "pass", "pass"]);
    }
}
