"""The table behind `test_case_table`: key patterns to tests, "file::function", joined by " + "."""

_SEQ = "losses/test_sequence.py::"
_EST = "losses/test_estimators.py::"
_DIV = "losses/test_divergences.py::"
_BND = "losses/test_bounds.py::"
_LAW = "rollouts/test_laws.py::"
_STA = "statistics/test_statistics_"
_GRA = "metrics/test_metrics_gradients.py::"
_ROU = "metrics/test_metrics_rounding.py::"
_CD = "tasks/test_countdown_"
_SIZ = "test_sizes_and_spacing.py::"

EXAMPLE_TESTS: dict[str, str] = {
    **dict.fromkeys(("p", "q"), _EST + "test_worked_means_and_deviations"),
    **dict.fromkeys(
        ("fkl", "rkl", "H[pq]", "CEpq", "jsd0.*", "jsd_small*", "jsd_big*", "mix25", "eopd_*"),
        _DIV + "test_worked_values",
    ),
    **dict.fromkeys(("gF", "gR", "gJ*", "gM25"), _DIV + "test_worked_gradients"),
    **dict.fromkeys(("r", "d"), _BND + "test_worked_log_ratio"),
    "m0.*": _DIV + "test_jsd_mixes_probabilities_with_beta_on_the_teacher",
    "jsd_cap*": _DIV + "test_worked_cap_of_jsd",
    **dict.fromkeys(("T_q", "T_p*"), "losses/test_log_probs.py::test_worked_laws_at_temperature"),
    **dict.fromkeys(("T_gF", "T2_gF"), _DIV + "test_worked_forward_gradient_in_raw_logits"),
    "T_rangeR*": _BND + "test_a_sharper_teacher_stretches_the_log_ratio_range",
    "seq[PQ]": _SEQ + "test_worked_sequence_laws",
    "seq[FR]": _SEQ + "test_only_matched_prefixes_give_the_sequence_kl",
    "tok_[TS]*": _SEQ + "test_worked_sums_over_visited_prefixes",
    "d_*": _SEQ + "test_worked_token_divergences",
    "lam[-0-9]*": _LAW + "test_spectrum_worked_numbers",
    "lam_naive2": _LAW + "test_spectrum_without_guards_is_the_plain_extrapolation",
    "lam_r": _LAW + "test_spectrum_ratio_and_normaliser",
    "odds_cap_empirical": _LAW + "test_spectrum_odds_are_capped_at_three",
    "coin_*": _LAW + "test_token_coin_worked_numbers",
    "mix[ts]*": _LAW + "test_coins_over_whole_sequences",
    "mix_*": _LAW + "test_coins_differ_after_a_prefix",
    "skd*": _LAW + "test_skd_worked_numbers",
    **dict.fromkeys(("nuc*", "raw_lp0"), _LAW + "test_nucleus_worked_numbers"),
    "temp05*": "rollouts/test_sampling.py::test_temperature_worked_numbers",
    "stale_*": "losses/test_weights.py::test_worked_stale_rollout_weight",
    **dict.fromkeys(("E[qp]_k*", "Sd[qp]_*"), _EST + "test_worked_means_and_deviations"),
    "Eq_fwd*": _EST + "test_forward_kl_from_student_tokens",
    "g_[qp]_*": _EST + "test_worked_gradients_of_the_raw_forms",
    "cos_k3*": _EST + "test_k3_as_loss_descends_the_other_kl_and_a_cosine_does_not_show_it",
    "var_rkl*": _EST + "test_worked_variance_of_the_reverse_loss",
    "bstar": _EST + "test_worked_best_constant_baseline",
    **dict.fromkeys(
        ("var_fkl*", "one_minus_p2"), _EST + "test_worked_variance_of_the_forward_loss"
    ),
    "var_k3*": _EST + "test_worked_variance_of_k3_as_loss",
    "chi2_q_mu": _EST + "test_worked_chi_square_of_importance_weights",
    "hv_fkl": _EST + "test_heavy_tail_in_the_other_direction",
    **dict.fromkeys(("hv_[rs]*", "hv2_*"), _EST + "test_heavy_tails"),
    "vopd_A": _EST + "test_worked_vopd_advantage",
    **dict.fromkeys(
        ("fullg_*", "semig_*"),
        _SEQ + "test_the_token_update_leaves_out_the_future_of_earlier_tokens",
    ),
    **dict.fromkeys(
        ("n2F", "n2R", "TVpq", "twoTV2", "minKL"), _BND + "test_worked_norms_of_example_a"
    ),
    **dict.fromkeys(
        ("worst_ratio_*", "R_const"), _BND + "test_both_worst_ratios_are_attained_by_two_tokens"
    ),
    "n2F_extreme": _BND + "test_the_forward_supremum_is_approached_by_point_masses",
    "c2_*": _BND + "test_the_reverse_gradient_is_unbounded_while_the_forward_one_is_not",
    "[rf]k_T*": _BND + "test_a_sharper_teacher_lengthens_the_reverse_gradient",
    **dict.fromkeys(("sg_bound*", "sg_Rmax"), _BND + "test_worked_update_bounds"),
    "sg_[dnc]*": _SEQ + "test_worked_updates_under_two_rollout_policies",
    "clip_*": _GRA + "test_clip_coefficient",
    **dict.fromkeys(("ad_clip*", "ad_sum_clip"), _GRA + "test_a_clipped_spike_does_not"),
    **dict.fromkeys(
        ("ad_before", "ad_spike", "ad_after*", "ad_end", "ad_sum_spike"),
        _GRA + "test_a_spike_shrinks_what_adam_moves",
    ),
    "adam_scale": _SIZ + "test_adam_forgets_the_scale_of_the_gradient_up_to_its_epsilon",
    "gn_cos*": _GRA + "test_cosines_of_the_worked_example",
    "gn_[vuns]*": _GRA + "test_gradient_noise_of_the_worked_example",
    "tv_*": _SEQ + "test_worked_total_variations",
    "wil_lang": _STA + "intervals.py::test_wilson_of_a_language_share",
    "wil_[0-9]*": _STA + "intervals.py::test_wilson_worked_numbers",
    "se_*": _STA + "intervals.py::test_binomial_se_worked_numbers",
    "cp_171": _STA + "intervals.py::test_clopper_pearson_worked_number",
    **dict.fromkeys(
        ("sem3", "ci3", "t2"), _STA + "intervals.py::test_three_seeds_pay_a_wide_t_interval"
    ),
    "mcnemar": _STA + "intervals.py::test_mcnemar_worked_number",
    "diff_se_*": _STA + "intervals.py::test_difference_se_paired_against_unpaired",
    "se1000": _STA + "intervals.py::test_binomial_se_of_a_language_share",
    "evalsd*": _STA + "intervals.py::test_evaluation_noise_in_points",
    "pk_mean": _STA + "pass_at_k.py::test_the_worked_numbers_of_ten_samples",
    "pk_[0-9]*": _STA + "pass_at_k.py::test_the_worked_numbers_of_ten_samples",
    "pk_plugin3": _STA + "pass_at_k.py::test_the_plug_in_estimator_differs_beyond_k_1",
    "ent_q": "metrics/test_metrics_counts.py::test_entropy_of_example_a",
    "ent_[rm]*": _DIV + "test_worked_entropies_of_rows",
    "nats12": _DIV
    + "test_entropy_is_at_most_log_vocabulary_and_twelve_nats_need_more_than_llama_has",
    "fg_*": _STA + "forgetting_and_fits.py::test_every_definition_of_forgetting",
    "kf_*": _STA + "forgetting_and_fits.py::test_the_quadratic_law_of_forgetting",
    "chance_corr": _STA + "forgetting_and_fits.py::test_chance_corrected_worked_number",
    "mob_*": _ROU + "test_largest_movable_matches_the_table",
    "eta_[0-9]*": _ROU + "test_smallest_moving_update_matches_the_table",
    "eta_in_*": _ROU + "test_inward_updates_may_be_smaller_at_powers_of_two",
    "pred_*": _ROU + "test_analytic_census_of_a_normal_law",
    "sim_bf16_*": _ROU + "test_simulated_bfloat16_levels",
    "sim_fp32_*": _ROU + "test_simulated_float32_levels",
    "sim_sens": _ROU + "test_simulated_levels_over_spreads_and_signals",
    "v_decay_*": _SIZ + "test_a_bfloat16_second_moment_does_not_decay",
    "v_after1000_bf16": _ROU + "test_the_second_moment_never_decays_in_bfloat16",
    "rk_[sre][vatf]*": "metrics/test_metrics_rank.py::test_worked_example",
    "emb_share": _SIZ + "test_the_embedding_is_a_large_share_of_the_papers_students",
    "logits_gib": _SIZ + "test_one_logits_matrix_of_the_papers_sizes",
    "logit_spacing20": "losses/test_log_probs.py::"
    "test_bf16_logits_near_twenty_are_quantised_before_any_upcast",
    "cd": _CD + "verifier.py::test_worked_verdicts",
    "cdx": _CD + "verifier.py::test_worked_extractions",
    "sol*": _CD + "solutions.py::test_solver_counts_and_sets",
    "canon_*": _CD + "solutions.py::test_which_chains_are_the_same_solution",
    "cd_ms*": _CD + "generator.py::test_multisets_of_the_three_tasks",
    "cd_inst3": _CD + "generator.py::test_all_problems_of_countdown_3_can_be_had_and_no_more",
    "mcq": "tasks/test_multiple_choice.py::test_worked_choices",
    "grpo_*": "rlvr/test_grpo.py::test_worked_advantages",
    "cos": "rlvr/test_grpo.py::test_worked_cosine_schedule",
    "wu": "distill/test_student.py::test_warm_up_starts_at_zero_as_in_the_hugging_face_schedule",
    "kl_softmax_bound": _DIV + "test_a_bounded_kl_of_softmaxes",
    "iw_signed": "losses/test_weights.py::test_signed_sums_would_cancel",
    "iw_ratio_share": "losses/test_weights.py::test_worked_share_of_the_advantage_that_is_spent",
    **dict.fromkeys(
        ("iw_A", "iw_w*", "iw_loss", "opd_loss"), "losses/test_weights.py::test_worked_iw_opd"
    ),
    "tr_[alq]*": "rollouts/test_trust_region.py::test_the_projection_is_a_point_of_the_spectrum",
    "tr_full": "rollouts/test_trust_region.py::test_the_constraint_is_idle_beyond_the_teacher",
    "tokw_*": "losses/test_reductions.py::test_worked_token_weights",
    "anova": _STA + "anova.py::test_the_worked_table",
    "an_*": _STA + "anova.py::test_the_lines_below_the_table",
    "t[123]_R": _STA + "anova.py::test_types_differ_once_runs_are_lost",
    "t_bal_R": _STA + "anova.py::test_types_coincide_in_a_balanced_design",
    "simple": _STA + "cells.py::test_simple_effects_of_the_example",
    "did": _STA + "cells.py::test_difference_of_differences_of_the_example",
    "cellsd": _STA + "cells.py::test_cell_standard_deviations_of_the_example",
    "pw_tab": _STA + "inference.py::test_seeds_table",
    "pw3": _STA + "inference.py::test_power_of_three_seeds",
    **dict.fromkeys(
        ("pwfac", "mde*"), _STA + "inference.py::test_factorial_power_and_detectable_effect"
    ),
    "sd_total": _STA + "inference.py::test_evaluation_noise_adds_to_seed_noise",
    **dict.fromkeys(("holm", "bh"), _STA + "inference.py::test_adjusted_p_values"),
    "er": _STA + "inference.py::test_expected_range_of_noise_means",
    "er_pp*": _STA + "inference.py::test_expected_range_in_points",
    "signflip*": _STA + "contrasts.py::test_smallest_sign_flip_p_of_the_examples",
    "boot_multisets3": _STA + "bootstrap.py::test_three_seeds_have_ten_resamples",
}

_REP = "losses/test_divergence_reports.py::"
_TPL = "models/test_prompts_and_vocabulary.py::"
BUG_TESTS: dict[str, str] = {
    "B1": _REP + "test_b1_jsd_mixes_before_the_log",
    "B2": _REP + "test_b2_both_laws_are_compared_at_the_same_position"
    " + models/test_hidden.py::test_a_one_token_completion_has_one_loss_token",
    "B3": _REP + "test_b3_the_vocabulary_is_summed",
    "B4": "losses/test_reductions.py::"
    "test_b4_any_split_into_micro_batches_gives_the_same_loss_and_gradient"
    " + distill/test_against_trl.py::test_any_split_into_micro_batches_is_the_same_step",
    "B5": "losses/test_reductions.py::test_b5_denominators_come_from_the_tokens_of_the_rollout"
    " + distill/test_loop.py::test_on_policy_tokens_are_counted_as_generated_scored_and_trained",
    "B6": "rollouts/test_decode.py::test_padding_is_by_length_where_the_pad_id_is_a_stop_id"
    " + models/test_hidden.py::test_pad_ids_inside_a_prompt_are_read",
    "B8": _REP + "test_b8_each_direction_falls_at_every_step_on_itself",
    "B9": _REP + "test_b9_beta_weights_the_teacher"
    " + losses/test_divergence_reports.py::test_b9_the_continuous_knob_is_the_linear_mix",
    "B10": _REP + "test_b10_a_kl_is_no_cross_entropy",
    "B11": "losses/test_log_probs.py::test_temperature_divides_logits_before_the_softmax"
    " + rollouts/test_sampling.py::test_temperature_divides_logits_before_the_softmax",
    "B12a": _REP + "test_b12a_impossible_for_both_is_finite",
    "B13": "losses/test_reductions.py::test_b13_an_empty_row_leaves_numerator_and_denominator"
    " + losses/test_reductions.py::test_b13_an_empty_batch_is_zero_with_zero_gradients",
    "B14": _REP + "test_b14_half_precision_inputs_are_upcast",
    "B17": _EST + "test_b17_a_cost_that_ignores_the_token_trains_nothing",
    "B18": _EST + "test_b18_values_and_gradients_of_the_raw_estimators",
    "B19": "losses/test_supports.py::test_b19_the_top_k_is_global_and_numbered_by_the_vocabulary",
    "B22": _TPL + "test_the_stop_set_is_the_union_of_all_that_name_one",
    "B23": _TPL + "test_a_template_with_bos_gives_exactly_one",
    "B25": "models/test_hidden.py::test_padding_does_not_shift_absolute_positions",
    "B26": "losses/test_weights.py::test_b26_returns_stop_at_the_mask",
    "B28": "models/test_hidden.py::test_an_empty_completion_is_an_empty_slice",
    "B29": _TPL + "test_a_prompt_over_the_limit_is_an_error_and_never_cut"
    " + models/test_hidden.py::test_the_mode_of_the_module_is_left_alone"
    " + rollouts/test_decode.py::"
    "test_a_module_in_train_mode_samples_without_dropout_and_stays_in_it",
    "B30": _STA + "pass_at_k.py::test_bug_report_b30_unbiased_values"
    " + statistics/test_statistics_pass_at_k.py::"
    "test_bug_report_b30_fewer_samples_than_k_is_refused",
    "B31": _CD + "verifier.py::test_reported_holes_are_closed_by_the_chain_rules"
    " + tasks/test_countdown_verifier.py::test_reported_holes_are_closed_for_free_expressions",
    "B32": "tasks/test_grading.py::test_numbers_are_neither_lost_nor_found_where_there_are_none",
    "B34": _REP + "test_b34_equal_laws_divide_nothing_by_zero",
    "B36": "config/test_config_method.py::"
    "test_impossible_combinations_name_both_fields_and_the_mend",
}

LATER: dict[str, str] = {
    "lang_*": "the language detector of the style-transfer study, which is not built yet",
    "ar_*": "pooling of several teachers, which is not built yet",
    "tok_geo_first": "pooling of several teachers, which is not built yet",
    "egc": "the entropy-gated length curriculum, which is not built yet",
    "B20": "no loss here adds a cross-entropy term, so there is nothing that could be misapplied; "
    "the source of every token travels with it (distill/test_loop.py)",
}
