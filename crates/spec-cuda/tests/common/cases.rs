//! Calls of every operator that together run its kernels, for tests of streams and graphs.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use spec_conformance::{Case, Layout, Ready, Subject, routes};
use spec_core::{Role, Stream, Supports};
use spec_cuda::Cuda;

/// A call that can be repeated with other inputs.
pub trait Call {
    /// Writes inputs and in-place arguments made from a seed.
    fn fill(&mut self, seed: u64);
    /// Enqueues the call.
    fn run(&mut self, stream: Stream<'_>);
    /// The bytes of everything that the call wrote. Inputs must not have changed.
    fn outputs(&self) -> Vec<u8>;
    /// The same descriptor with other memory.
    fn twin(&self, cuda: &Cuda) -> Box<dyn Call>;
}

struct Varied<O: Subject> {
    base: Case<O>,
    case: Case<O>,
    ready: Ready<O>,
}

impl<O: Subject> Call for Varied<O> {
    fn fill(&mut self, seed: u64) {
        self.case = self.base.varied(seed);
        self.ready.write(&self.case).expect("a copy to the device");
    }

    fn run(&mut self, stream: Stream<'_>) {
        self.ready.enqueue(stream).expect("a launch");
    }

    fn outputs(&self) -> Vec<u8> {
        let results = self.ready.results(&self.case).expect("a copy from the device");
        let written = results.iter().filter(|argument| argument.role != Role::Input);
        written.flat_map(|argument| argument.tensor.data.bytes().to_vec()).collect()
    }

    fn twin(&self, cuda: &Cuda) -> Box<dyn Call> {
        let ready = self.ready.twin(cuda, &self.case).expect("memory");
        Box::new(Varied { base: self.base.clone(), case: self.case.clone(), ready })
    }
}

/// The seeds of each operator's cases. The tests of a program share them: choosing takes long.
static SEEDS: LazyLock<Mutex<HashMap<&str, Vec<u64>>>> = LazyLock::new(Default::default);

/// The calls of one operator, with the operator's name and the seed of the case.
fn of<O: Subject>(cuda: &Cuda) -> Vec<(String, Box<dyn Call>)>
where
    Cuda: Supports<O>,
{
    let mut seeds = SEEDS.lock().expect("no test panics while it chooses");
    let choose = || routes::seeds::<O, _>(cuda).expect("routes");
    let seeds = seeds.entry(O::NAME).or_insert_with(choose);
    let call = |seed: &u64| {
        let case = Case::<O>::of_seed(*seed);
        let ready = Ready::new(cuda, &case, Layout::PACKED).expect("a descriptor");
        let call: Box<dyn Call> = Box::new(Varied { base: case.clone(), case, ready });
        (format!("{} {seed}", O::NAME), call)
    };
    seeds.iter().map(call).collect()
}

/// A call of every operator for each list of kernels that its random cases run.
pub fn all(cuda: &Cuda) -> Vec<(String, Box<dyn Call>)> {
    macro_rules! all {
        ($($module:ident: $operator:ident,)+) => {
            [$( of::<spec_core::ops::$operator>(cuda) ),+]
        };
    }
    spec_core::for_each_operator!(all).into_iter().flatten().collect()
}
