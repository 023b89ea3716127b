//! Cases of `topk_router` that the random cases do not cover.

use half::{bf16, f16};
use spec::ops::TopkRouter;
use spec::ops::topk_router::{Buffers, Scoring};
use spec::{DType, Element, Handle, Result, TensorDesc};

/// The weights of rows of two experts, both picked.
fn weights(handle: &Handle, params: &TopkRouter, x: &[[f32; 2]]) -> Result<Vec<f32>> {
    let op = handle.create(params, &params.tensors(DType::F32, x.len(), 2, None))?;
    let mut workspace = op.workspace(handle)?;
    let x = handle.upload(x.as_flattened())?;
    let mut weights = handle.allocate::<f32>(x.len())?;
    let mut indices = handle.allocate::<i32>(x.len())?;
    let buffers = Buffers::new(x.view(), weights.view_mut(), indices.view_mut());
    op.call(&mut workspace, buffers)?;
    weights.to_vec()
}

#[test]
fn the_share_of_a_score_is_scaled_not_the_score() {
    let params = TopkRouter::new(2).scoring(Scoring::SqrtSoftplus).renormalize(true).scale(3e38);
    // Square roots of 100 and 100, of 400 and 25, of the largest f32 twice; and a score that
    // is 0 compared with the other.
    let x = [[100.0, 100.0], [400.0, 25.0], [f32::MAX, f32::MAX], [1.0, -200.0]];
    let shares = [0.5, 0.5, 0.8, 0.2, 0.5, 0.5, 1.0, 0.0];
    for handle in crate::common::handles() {
        let weights = weights(&handle, &params, &x).unwrap();
        for (at, (weight, share)) in weights.iter().zip(shares).enumerate() {
            let error = (weight - 3e38 * share).abs();
            let device = handle.device();
            assert!(error <= 2e-5 * 3e38, "{device}: weight {at} is {weight}, {share} of 3e38");
        }
    }
}

/// Where the exact exponential is 0, so are sigmoid and the square root of softplus, and so are the
/// shares. An approximate square root of e^-87 is far from 0, though: the shares of such scores look like
/// any others. The numbers of experts are some for which backends have kernels that approximate, and the
/// biases of experts lie so far apart that approximate scores decide which ones are picked.
#[test]
fn scores_of_zero_weigh_nothing() {
    // The exact exponential is 0 below -87; e^-87.34 is about the smallest normal f32.
    let logit = |i: usize| -87.001 - (i * 37 % 330) as f32 * 1e-3;
    for handle in crate::common::handles() {
        for (experts, topk) in [(256, 8), (384, 6), (64, 4), (160, 8), (896, 16)] {
            for scoring in [Scoring::SqrtSoftplus, Scoring::Sigmoid] {
                let bias: Vec<f32> =
                    (0..experts).map(|e| (e * 37 % experts) as f32 / 16.0).collect();
                let params = TopkRouter::new(topk).scoring(scoring).renormalize(true);
                let tensors = params.tensors(DType::F32, 3, experts, Some(DType::F32));
                let op = handle.create(&params, &tensors).unwrap();
                let route = op.route().unwrap();
                // CUDA's kernel `topk_router_general` computes exact scores only.
                let is_exact = |kernel: &str| kernel.starts_with("topk_router_general");
                assert!(!route.kernels().any(is_exact), "{route} checks nothing here");
                let mut workspace = op.workspace(&handle).unwrap();
                let x: Vec<f32> = (0..3 * experts).map(logit).collect();
                let (x, on_device) = (handle.upload(&x).unwrap(), handle.upload(&bias).unwrap());
                let mut weights = handle.upload(&vec![7.0_f32; 3 * topk]).unwrap();
                let mut indices = handle.allocate::<i32>(3 * topk).unwrap();
                let buffers = Buffers::new(x.view(), weights.view_mut(), indices.view_mut());
                op.call(&mut workspace, buffers.bias(on_device.view())).unwrap();

                let words = format!("{}: {experts} experts, {}", handle.device(), scoring.name());
                let weights = weights.to_vec().unwrap();
                assert!(weights.iter().all(|weight| weight.abs() <= 1e-6), "{words}: {weights:?}");
                // Choices are biases.
                let mut order: Vec<usize> = (0..experts).collect();
                order.sort_by(|&a, &b| bias[b].total_cmp(&bias[a]));
                let picks: Vec<i32> = order[..topk].iter().map(|&expert| expert as i32).collect();
                assert_eq!(indices.to_vec().unwrap(), picks.repeat(3), "{words}");
            }
        }
    }
}

/// The weights of a shared expert in the second column, in a type, by weight.
fn shared_weights<T: Element>(handle: &Handle, given: &[f32]) -> Result<Vec<T>> {
    let shared = given.iter().map(|&weight| {
        let params = TopkRouter::new(1).shared_experts(1).shared_weight(weight);
        // Three rows of two columns: no row begins where the one before it ends.
        let mut tensors = params.tensors(DType::F32, 3, 2, None);
        tensors.weights = TensorDesc::with_strides(T::DTYPE, [3, 2], [3, 1]);
        let op = handle.create(&params, &tensors)?;
        let mut workspace = op.workspace(handle)?;
        let x = handle.upload(&[0.0_f32; 6])?;
        let mut weights = handle.allocate::<T>(8)?;
        let mut indices = handle.allocate::<i32>(6)?;
        let buffers = Buffers::new(x.view(), weights.view_mut(), indices.view_mut());
        op.call(&mut workspace, buffers)?;
        Ok(weights.to_vec()?[7])
    });
    shared.collect()
}

/// Random cases allow neighbours where an f32 may lie on either side of the middle between two
/// numbers of 16 bits. A shared expert's weight is given, so its rounding is exact: middles go to
/// the even neighbour, small numbers become subnormal, and large ones infinite.
#[test]
fn weights_of_16_bits_are_rounded_once_to_even() {
    let mut given = vec![0.4, -2.0, 65519.0, 65520.0, 3.4e38, -1e-7, 2.98e-8, 2.99e-8];
    for step in [1.0 / 2048.0, 1.0 / 256.0] {
        // From 1, steps of a half of the distance between neighbours, and a little beside them.
        let near = |steps: u32| [-1e-7, 0.0, 2e-7].map(|beside| 1.0 + steps as f32 * step + beside);
        given.extend((0..6).flat_map(near));
    }
    for handle in crate::common::handles() {
        let device = handle.device();
        let halves = shared_weights::<f16>(&handle, &given).unwrap();
        let brains = shared_weights::<bf16>(&handle, &given).unwrap();
        for ((&weight, half), brain) in given.iter().zip(halves).zip(brains) {
            let expected = (f16::from_f32(weight), bf16::from_f32(weight));
            assert_eq!((half, brain), expected, "{device}: {weight}");
        }
    }
}
