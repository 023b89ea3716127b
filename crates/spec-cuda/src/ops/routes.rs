//! Which kernels devices run, asked of handles without a device. The kernels and launch shapes of
//! an operator's calls are tested beside its host code.

use std::collections::BTreeSet;

use spec_conformance::{Case, Layout, Subject, routes};
use spec_core::ops::topk_router::preset;
use spec_core::ops::*;
use spec_core::{DType, Descriptor, Operator, Supports};

use crate::archive::{Kind, entries};
use crate::limits::Limits;
use crate::{Cuda, cubin};

/// The route of a call on a device.
pub(super) fn route<O: Operator>(limits: Limits, operator: &O, tensors: &O::Tensors) -> String
where
    Cuda: Supports<O>,
{
    let cuda = Cuda::without_device(limits);
    let descriptor = Descriptor::create(&cuda, operator, tensors).expect("a descriptor");
    descriptor.route().expect("a route").to_string()
}

/// The routes of random calls of every operator, the first `cases` seeds.
fn random(limits: Limits, cases: u64) -> Vec<spec_core::Route> {
    fn of<O: Subject>(cuda: &Cuda, cases: u64, routes: &mut Vec<spec_core::Route>)
    where
        Cuda: Supports<O>,
    {
        for seed in 0..cases {
            let case = Case::<O>::of_seed(seed);
            let route = case.route(cuda, Layout::PACKED);
            routes.push(route.unwrap_or_else(|failure| panic!("{} {seed}: {failure}", O::NAME)));
        }
    }
    let (cuda, mut routes) = (Cuda::without_device(limits), Vec::new());
    macro_rules! all {
        ($($module:ident: $operator:ident,)+) => { $( of::<$operator>(&cuda, cases, &mut routes); )+ };
    }
    spec_core::for_each_operator!(all);
    routes
}

/// The routes of calls whose data are too large for random cases, on an H100.
fn large() -> Vec<String> {
    let mut routes = Vec::new();
    for dtype in [DType::I32, DType::U64] {
        for n in [1 << 17, 1 << 23, 1 << 25] {
            let operator = Unique::new();
            let tensors = operator.tensors(dtype, n);
            routes.push(route(Limits::H100, &operator, &tensors));
        }
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let preset = preset::DEEPSEEK_V3;
        routes.push(route(Limits::H100, &preset.router(), &preset.tensors(dtype, 4096)));
    }
    let operator = TreeVerify::new(4);
    routes.push(route(Limits::H100, &operator, &operator.tensors(2, 1 << 16)));
    routes
}

/// The names of the compiled kernels.
fn compiled() -> BTreeSet<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/compiled");
    let files = std::fs::read_dir(folder).expect("the folder of the archives");
    let paths = files.map(|file| file.expect("a file").path());
    let archives = paths.filter(|path| path.extension().is_some_and(|name| name == "bin"));
    let kernels = archives.flat_map(|path| {
        let bytes = std::fs::read(&path).expect("an archive");
        let all = entries(&bytes).expect("an archive");
        let is_it = |e: &&crate::archive::Entry<'_>| e.kind == Kind::Sass && e.architecture == 90;
        let cubin = all.iter().find(is_it).and_then(|entry| entry.unpack()).expect("a cubin");
        cubin::kernels(&cubin)
    });
    kernels.collect()
}

/// Each compiled kernel is what some call runs: random cases, which test the kernel's results on a
/// GPU, or a call of [`large`]. And a call runs only compiled kernels.
#[test]
fn every_compiled_kernel_is_reached() {
    let smaller = ["cluster=1", "cluster=4,l2=0", "multiprocessors=16,shared=99"];
    let smaller = smaller.map(|list| Limits::H100.lowered(list).expect("limits"));
    let mut routes = random(Limits::H100, 6000);
    for limits in smaller.into_iter().chain([Limits::A100, Limits::RTX_4090]) {
        routes.extend(random(limits, 500));
    }
    let mut reached: BTreeSet<String> =
        routes.iter().flat_map(|route| route.kernels().map(str::to_owned)).collect();
    for route in large() {
        reached
            .extend(route.split(", ").filter_map(|step| Some(step.split_once(" (")?.0.to_owned())));
    }
    assert!(reached.remove("memset"));
    let compiled = compiled();
    let unreached: Vec<_> = compiled.difference(&reached).collect();
    assert!(unreached.is_empty(), "no call runs {unreached:?}");
    let unknown: Vec<_> = reached.difference(&compiled).collect();
    assert!(unknown.is_empty(), "not compiled: {unknown:?}");
}

/// The cases that the tests of streams and graphs call are of every operator, and run nearly every
/// kernel that random cases run. The other kernels run only in cases whose results do not follow
/// their inputs, such as calls of no rows.
#[test]
fn chosen_cases_run_the_kernels() {
    fn of<O: Subject>(cuda: &Cuda) -> [BTreeSet<String>; 2]
    where
        Cuda: Supports<O>,
    {
        let kernels = |seed: u64| {
            let route = Case::<O>::of_seed(seed).route(cuda, Layout::PACKED).expect("a route");
            route.kernels().map(str::to_owned).collect::<Vec<_>>()
        };
        let chosen = routes::seeds::<O, _>(cuda).expect("routes");
        assert!(!chosen.is_empty(), "no case of {}", O::NAME);
        [routes::SEEDS.flat_map(kernels).collect(), chosen.into_iter().flat_map(kernels).collect()]
    }
    let cuda = Cuda::without_device(Limits::H100);
    macro_rules! all {
        ($($module:ident: $operator:ident,)+) => { [$( of::<$operator>(&cuda) ),+] };
    }
    let of_operators = spec_core::for_each_operator!(all);
    let [all, run] = [0, 1]
        .map(|at| of_operators.iter().flat_map(|sets| sets[at].iter()).collect::<BTreeSet<_>>());
    let missing: Vec<_> = all.difference(&run).collect();
    assert!(missing.len() * 20 <= all.len(), "{} kernels, but not {missing:?}", all.len());
}

/// No launch has a larger cluster than the device runs.
#[test]
fn clusters_are_as_large_as_the_device_runs_them() {
    let largest = |limits| {
        let routes = random(limits, 300).into_iter().map(|route| route.to_string());
        let sizes = routes.flat_map(|route| {
            let clusters = route.split("in clusters of ").skip(1);
            let sizes = clusters.map(|rest| rest[..rest.find(')').expect("its end")].to_owned());
            sizes.collect::<Vec<_>>()
        });
        sizes.map(|size| size.parse().expect("a number")).max().unwrap_or(1)
    };
    for cluster in [1, 2, 4, 8, 16] {
        let limits = Limits::H100.lowered(&format!("cluster={cluster}")).expect("limits");
        assert_eq!(largest(limits), cluster);
    }
    assert_eq!(largest(Limits::A100), 1);
}
