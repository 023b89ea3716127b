//! Tests that wrong results are found, and that the tables of rows are consistent.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::work::{Effort, Implementation, Inputs, OnDevice, Uploaded, Work};
use super::{Goal, Measured, Options, Row, operators, row, row_of, rows, run};
use spec::Role;
use spec::ops::{
    DeduplicateTopk, HybridMtpNgram, NgramMatch, PromptLookup, RejectionSample, TopkRouter, Unique,
};
use spec::{Handle, Result, Stream, Timed, Timing};
use spec_conformance::Data;
use spec_conformance::Failure;

fn cpu() -> Handle {
    Handle::cpu().unwrap()
}

fn work<O: Measured>(shape: &str) -> Work<O> {
    let mut fields = super::Fields::parse(O::NAME, shape).unwrap();
    let shape = O::parse(&mut fields).unwrap();
    fields.finish().unwrap();
    O::work(&shape).unwrap()
}

/// A copy of the data with one element changed a little.
fn spoil(data: &Data, at: usize) -> Data {
    let mut data = data.clone();
    match &mut data {
        Data::F32(data) => data[at] += 1e-5 + 1e-3 * data[at].abs(),
        Data::I32(data) => data[at] ^= 1,
        Data::I64(data) => data[at] ^= 1,
        Data::U64(data) => data[at] ^= 1,
        _ => unreachable!("no output has another dtype"),
    }
    data
}

/// Tests that the check accepts the results of every implementation, and that the check
/// fails when an element of an output is changed.
fn check_finds<O: Measured>(shape: &str) {
    let work = work::<O>(shape);
    let cpu = cpu();
    let mut uploaded = Uploaded::new(&work, &cpu).unwrap();
    let implementations = uploaded.implementations();
    assert!(implementations.len() > 1, "{} has no plain loop", O::NAME);
    for (which, implementation) in implementations.into_iter().enumerate() {
        let name = implementation.name;
        uploaded.select(which).unwrap();
        // If no request finds a match, hybrid_mtp_ngram rightly changes nothing.
        let idle = O::NAME == "hybrid_mtp_ngram" && shape.ends_with("none");
        assert_eq!(uploaded.check().is_ok(), idle, "{}, {name}: before any call", O::NAME);
        uploaded.call(Stream::default()).unwrap();
        uploaded.check().unwrap_or_else(|failure| panic!("{}, {name}: {failure}", O::NAME));
        for slot in 0..uploaded.slots.len() {
            if uploaded.slots[slot].role == Role::Input {
                continue;
            }
            let like = &work.case.arguments[uploaded.slots[slot].argument].tensor.data;
            let right = uploaded.slots[slot].held[0].read(like).unwrap();
            // The elements after the distinct keys are unspecified.
            let argument = uploaded.slots[slot].name;
            let end = if (O::NAME, argument) == ("unique", "unique") { 100 } else { right.len() };
            for at in [0, end / 2, end - 1] {
                uploaded.slots[slot].held[0].write(spoil(&right, at).bytes()).unwrap();
                let failure =
                    uploaded.check().expect_err(&format!("{}, {shape}, {argument}[{at}]", O::NAME));
                let index = failure.index.clone().unwrap_or_default();
                let near =
                    index.last().is_none_or(|last| at.abs_diff(*last) <= 1 || index.len() > 1);
                assert!(failure.argument == argument && near, "{}: {failure}", O::NAME);
            }
            uploaded.slots[slot].held[0].write(right.bytes()).unwrap();
        }
        assert!(uploaded.check().is_ok());
    }
}

#[test]
fn one_wrong_element_is_found() {
    check_finds::<TopkRouter>("tokens=70");
    check_finds::<TopkRouter>("tokens=9,experts=64,dtype=bf16,scoring=softmax");
    check_finds::<TopkRouter>("tokens=40,experts=384,topk=6,scoring=sqrt_softplus,replicas=yes");
    check_finds::<DeduplicateTopk>("batch=5,steps=2,k=300,below=500");
    check_finds::<DeduplicateTopk>("batch=3,values=text");
    check_finds::<RejectionSample>("batch=3,drafts=4,vocab=5000");
    check_finds::<RejectionSample>("batch=3,drafts=4,vocab=5000,recovery=sample,dtype=f16");
    for found in ["low", "high-prompt", "high-generated", "none", "text"] {
        check_finds::<NgramMatch>(&format!("batch=3,prompt=400,found={found}"));
        check_finds::<HybridMtpNgram>(&format!("batch=3,prompt=400,found={found}"));
        for which in ["first", "last"] {
            let shape = format!("batch=3,prompt=400,found={found},occurrence={which}");
            check_finds::<PromptLookup>(&shape);
        }
    }
    check_finds::<NgramMatch>("batch=9,prompt=400,budget=binds,encode=quarter");
    check_finds::<HybridMtpNgram>("batch=9,prompt=400,budget=binds");
    for set in ["uniform", "zipf", "sorted"] {
        check_finds::<Unique>(&format!("keys=3000,bits=40,set={set}"));
    }
}

/// With a budget that binds, the first requests get all their drafts and the last requests none.
#[test]
fn budgets_that_bind_are_shared_out() {
    fn this_time<O: Measured>(shape: &str) -> Vec<i32> {
        let work = work::<O>(shape);
        let cpu = cpu();
        let mut uploaded = Uploaded::new(&work, &cpu).unwrap();
        uploaded.implementations();
        uploaded.select(0).unwrap();
        uploaded.call(Stream::default()).unwrap();
        let slot = uploaded.slots.iter().find(|slot| slot.name == "seq_lens_this_time").unwrap();
        let like = &work.case.arguments[slot.argument].tensor.data;
        let Ok(Data::I32(counts)) = slot.held[0].read(like) else { panic!("counts are i32") };
        counts
    }
    let counts = this_time::<NgramMatch>("batch=8,prompt=200,budget=binds,encode=quarter");
    assert_eq!(counts, [100, 100, 6, 6, 4, 1, 1, 1]);
    let counts = this_time::<NgramMatch>("batch=8,prompt=200,encode=quarter");
    assert_eq!(counts, [100, 100, 6, 6, 6, 6, 6, 6]);
    let counts = this_time::<HybridMtpNgram>("batch=8,prompt=200,budget=binds");
    assert_eq!(counts, [6, 6, 6, 6, 6, 4, 2, 2]);
}

/// In-place arguments are restored for every call of every sample, so that all calls do the
/// same work.
#[test]
fn timed_calls_all_do_the_same_work() {
    let work = work::<HybridMtpNgram>("batch=7,prompt=200,found=low");
    for handle in [Ok(cpu()), "wgpu".parse()].into_iter().flatten() {
        let mut uploaded = Uploaded::new(&work, &handle).unwrap();
        uploaded.select(0).unwrap();
        let effort = Effort { samples: 5, calls: 4, budget: std::time::Duration::from_secs(1) };
        let timing = uploaded.time(&effort).unwrap();
        assert!(timing.seconds.len() >= 5, "{timing:?}");
        uploaded.check().unwrap();
    }
}

#[test]
fn rows_have_names_of_their_own_and_goals() {
    let all = rows();
    let names: HashSet<_> = all.iter().map(|row| (row.operator, row.shape.clone())).collect();
    assert_eq!(names.len(), all.len(), "two rows of one name");
    for operator in operators() {
        let of = || all.iter().filter(move |row| row.operator == operator);
        assert!(of().any(|row| row.quick) && of().any(|row| !row.quick), "{operator}");
        // A chain of two operators has no goal of its own.
        if operator != "hybrid_mtp_ngram" && !operator.contains('+') {
            assert!(of().any(|row| matches!(row.goal, Goal::Hopper(_))), "{operator}");
        }
        // A shape without keys is a typical row.
        assert_eq!(row(operator, "").unwrap().operator, operator);
        assert!(row(operator, "nonsense=1").is_err_and(|e| e.to_string().contains("expected")));
    }
    for row in &all {
        if let Goal::Times(_, other) = &row.goal {
            assert!(names.contains(&(row.operator, other.clone())), "{other}");
        }
        assert!(row.size > 0.0 && row.memory > 0, "{}", row.shape);
    }
    assert!(row("sort", "").is_err_and(|e| e.to_string().contains("topk_router")));
}

/// Work whose result is always wrong.
struct Wrong;

impl Inputs for Wrong {
    fn bytes(&self) -> u64 {
        1
    }

    fn upload<'i>(&'i self, _handle: &Handle) -> Result<Box<dyn OnDevice + 'i>> {
        Ok(Box::new(Wrong))
    }

    fn save(&self, _folder: &Path) -> std::result::Result<(), String> {
        Ok(())
    }
}

impl Timed for Wrong {
    fn call(&mut self, _stream: Stream<'_>) -> Result<()> {
        Ok(())
    }
}

impl OnDevice for Wrong {
    fn implementations(&self) -> Vec<Implementation> {
        let uploaded = work::<Unique>("keys=10");
        Uploaded::new(&uploaded, &cpu()).unwrap().implementations()[..1].to_vec()
    }

    fn select(&mut self, _which: usize) -> Result<()> {
        Ok(())
    }

    fn time(&mut self, _effort: &Effort) -> Result<Timing> {
        Ok(Timing { seconds: vec![1.0; 5], method: "none".to_owned() })
    }

    fn check(&self) -> Result<&'static str, Failure> {
        Err(Failure { got: "4".to_owned(), ..Failure::of("answer", "42") })
    }
}

#[test]
fn a_wrong_result_is_no_row() {
    let good = row_of::<TopkRouter>(TopkRouter::table().remove(0));
    let wrong = Row { inputs: Arc::new(|| Ok(Box::new(Wrong))), ..good.clone() };
    let options = Options {
        handles: vec![cpu()],
        rows: vec![wrong, good],
        quick: true,
        host: false,
        command: "spec-bench".to_owned(),
    };
    let outcome = run(&options, &mut |_| ());
    assert_eq!(outcome.failed.len(), 1, "{:?}", outcome.failed);
    let line = &outcome.failed[0];
    assert!(line.contains("topk_router, 1 tokens, f32 on cpu, spec: wrong result"), "{line}");
    assert!(line.contains("answer: got 4, expected 42"), "{line}");
    let found: Vec<_> =
        outcome.report.measurements.iter().map(|m| m.implementation.as_str()).collect();
    assert_eq!(found, ["spec", "plain loop"], "of the row that is right");
    let spec = &outcome.report.measurements[0];
    let plain = &outcome.report.measurements[1];
    let goal = spec.goal_us.unwrap() / crate::report::stats::median(&plain.samples_us);
    let parts = [(1.0 / 3.0, "a third"), (1.0 / 5.0, "a fifth")];
    let (_, part) = parts.iter().find(|(part, _)| (goal - part).abs() < 1e-9).expect("a part");
    assert_eq!(spec.goal_from.as_deref(), Some(&*format!("{part} of the time of plain loop")));
}
