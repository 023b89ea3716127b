//! Tensor parallelism: the parts of a row come out as they do in the whole row.

use spec::Stream;
use spec::ops::AdjustLogits;
use spec_conformance::{Argument, Case, Data, Layout, Ready, Rng, Tensor, compare, find};

/// The results of a case on a device.
fn results(handle: &spec::Handle, case: &Case<AdjustLogits>) -> Vec<Argument> {
    let mut ready = Ready::new(handle, case, Layout::PACKED).unwrap();
    ready.enqueue(Stream::default()).unwrap();
    ready.results(case).unwrap()
}

/// Some neighbouring columns of a matrix.
fn columns(tensor: &Tensor, from: usize, to: usize) -> Tensor {
    let (rows, cols) = (tensor.rows(), tensor.cols());
    let at: Vec<usize> =
        (0..rows).flat_map(|row| (from..to).map(move |column| row * cols + column)).collect();
    let data = match &tensor.data {
        Data::F32(data) => Data::F32(at.iter().map(|&at| data[at]).collect()),
        Data::F16(data) => Data::F16(at.iter().map(|&at| data[at]).collect()),
        Data::BF16(data) => Data::BF16(at.iter().map(|&at| data[at]).collect()),
        other => panic!("logits are {}", other.dtype()),
    };
    Tensor { data, shape: vec![rows, to - from] }
}

/// The case on columns `from .. to` of its logits.
fn part(case: &Case<AdjustLogits>, vocab: usize, from: usize, to: usize) -> Case<AdjustLogits> {
    let mut part = case.map(|argument| match argument.name {
        "logits" => columns(&argument.tensor, from, to),
        _ => argument.tensor.clone(),
    });
    part.operator.first_token += from as i32;
    part.operator.vocab = vocab as i32;
    part
}

#[test]
fn parts_of_a_vocabulary_give_the_values_of_the_whole_row() {
    for handle in crate::common::handles() {
        let seeds = if handle.info().software { 20..60 } else { 20..320 };
        let mut forced = 0;
        for seed in seeds {
            let rng = &mut Rng::new(seed, "parts");
            let case = Case::<AdjustLogits>::random(rng);
            let logits = case.get("logits").unwrap();
            let cols = logits.cols();
            let vocab = match case.operator.vocab {
                0 => case.operator.first_token as usize + cols,
                vocab => vocab as usize,
            };
            if vocab == 0 {
                continue;
            }
            let whole = results(&handle, &case);
            let cut = rng.between(0, cols);
            for (from, to) in [(0, cut), (cut, cols)].into_iter().filter(|(from, to)| from < to) {
                let results = results(&handle, &part(&case, vocab, from, to));
                let expected: Vec<Argument> = whole
                    .iter()
                    .map(|argument| Argument {
                        tensor: match argument.name {
                            "logits" => columns(&argument.tensor, from, to),
                            _ => argument.tensor.clone(),
                        },
                        ..*argument
                    })
                    .collect();
                if let Some(failure) = compare(&results, &expected, |_| None) {
                    panic!("{}: columns {from}..{to} of seed {seed}: {failure}", handle.device());
                }
                if let Some(tensor) = find(&results, "forced") {
                    forced += (0..tensor.rows()).filter(|&at| tensor.data.show(at) != "-1").count();
                }
            }
        }
        assert!(forced > 0, "a budget forces a token");
    }
}
