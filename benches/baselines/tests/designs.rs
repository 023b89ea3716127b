//! Every design against the CPU backend, on random cases and on the shapes that are
//! measured: those on the CPU always, those on CUDA where there is a device
//! (required where `SPEC_REQUIRE` lists `cuda`).

#[path = "../../../tests/common/random.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod random;

#[path = "designs/deduplicate_topk.rs"]
mod deduplicate_topk;
#[path = "designs/ngram.rs"]
mod ngram;
#[path = "designs/rejection_sample.rs"]
mod rejection_sample;
#[path = "designs/topk_router.rs"]
mod topk_router;
#[path = "designs/unique.rs"]
mod unique;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Write;

use spec_baselines::{Design, Designs};
use spec_core::{
    Descriptor, Element, Memory, Result, Status, Stream, Supports, TensorDesc, View, ViewMut, dtype,
};
use spec_cpu::Cpu;
use spec_cuda::Cuda;

/// A call of an operator, with all of its inputs.
trait Case: Debug {
    type Operator: Designs;

    /// Makes the call on a backend.
    fn run(&self, on: &On<'_, Self::Operator>) -> Result<Outcome>;
}

/// What a call wrote.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    /// To the bit.
    exact: Vec<Vec<i64>>,
    /// Within 2e-5.
    close: Vec<f32>,
}

impl Outcome {
    fn agrees(&self, other: &Outcome) -> bool {
        let near = |(a, b): (&f32, &f32)| {
            a == b || (a - b).abs() <= 2e-5 * a.abs().max(b.abs()) || (a.is_nan() && b.is_nan())
        };
        self.exact == other.exact
            && self.close.len() == other.close.len()
            && self.close.iter().zip(&other.close).all(near)
    }
}

/// A backend with the operator.
struct On<'a, O: Designs>(&'a dyn Supports<O>);

impl<O: Designs> On<'_, O> {
    fn upload<T: Element>(&self, data: &[T]) -> Result<Array<T>> {
        let mut memory = self.0.allocate(size_of_val(data))?;
        memory.write(dtype::as_bytes(data))?;
        Ok(Array { memory, len: data.len(), element: std::marker::PhantomData })
    }

    fn calculate(&self, operator: &O, tensors: &O::Tensors, buffers: O::Buffers<'_>) -> Result<()> {
        let descriptor = Descriptor::create(self.0, operator, tensors)?;
        // What a workspace holds must not matter.
        let mut workspace = self.upload(&vec![0xA5u8; descriptor.workspace_size()])?;
        descriptor.calculate(workspace.view_mut(), buffers, Stream::default())?;
        self.0.synchronize()
    }
}

/// Memory of a backend.
struct Array<T> {
    memory: Box<dyn Memory>,
    len: usize,
    element: std::marker::PhantomData<T>,
}

impl<T: Element> Array<T> {
    fn view(&self) -> View<'_> {
        self.memory.view(T::DTYPE, self.len)
    }

    fn view_mut(&mut self) -> ViewMut<'_> {
        self.memory.view_mut(T::DTYPE, self.len)
    }

    fn get(&self) -> Result<Vec<T>> {
        let mut data = vec![T::default(); self.len];
        self.memory.read(dtype::as_bytes_mut(&mut data))?;
        Ok(data)
    }

    /// As integers.
    fn ints(&self) -> Result<Vec<i64>>
    where
        i64: From<T>,
    {
        Ok(self.get()?.into_iter().map(i64::from).collect())
    }
}

/// A matrix with `gap` elements between its rows: descriptor and data.
fn grid<T: Element>(rows: usize, cols: usize, gap: usize, packed: &[T]) -> (TensorDesc, Vec<T>) {
    let stride = cols + gap;
    let mut data = vec![T::default(); rows * stride];
    for row in 0..rows {
        data[row * stride..][..cols].copy_from_slice(&packed[row * cols..][..cols]);
    }
    (TensorDesc::with_strides(T::DTYPE, [rows, cols], [stride as isize, 1]), data)
}

fn cuda() -> Option<Cuda> {
    match Cuda::open(0) {
        Ok(cuda) => Some(cuda),
        Err(reason) => {
            let required = std::env::var("SPEC_REQUIRE").unwrap_or_default();
            let required = required.split(',').any(|name| name.trim() == "cuda");
            assert!(!required, "SPEC_REQUIRE asks for cuda, which is not there: {reason}");
            // Past the test harness, which swallows what `eprintln!` writes.
            _ = writeln!(std::io::stderr(), "skipped: {reason}");
            None
        }
    }
}

/// Holds all designs against the CPU backend on cases made from seeds. Each design
/// must take some: those that it does not cover it refuses with status 2.
fn agree<C: Case>(cases: impl IntoIterator<Item = C>)
where
    Cpu: Supports<C::Operator>,
{
    let cpu = Cpu::open(0).expect("a CPU");
    let mut designs: Vec<Design<C::Operator>> = C::Operator::on_cpu(&cpu);
    if let Some(cuda) = cuda() {
        designs.extend(C::Operator::on_cuda(&cuda));
    }
    let mut taken: BTreeMap<&str, usize> = designs.iter().map(|d| (d.name, 0)).collect();
    for case in cases {
        let expected = case.run(&On(&cpu)).expect("the CPU backend takes every case");
        for design in &designs {
            match case.run(&On(&*design.backend)) {
                Ok(got) => {
                    let name = design.name;
                    assert!(got.agrees(&expected), "{name}: {case:?}\n{got:?}\n{expected:?}");
                    *taken.entry(name).or_default() += 1;
                }
                Err(error) if error.status() == Status::NotImplemented => {}
                Err(error) => panic!("{}: {case:?}: {error}", design.name),
            }
        }
    }
    for (name, taken) in taken {
        assert!(taken >= 5, "{name} took {taken} cases only");
    }
}

/// How many random cases.
fn cases() -> u64 {
    std::env::var("SPEC_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(150)
}
