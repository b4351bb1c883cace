/* tests/family_texts.h -- config.json of small text models of other families. */
#ifndef TESTS_FAMILY_TEXTS_H
#define TESTS_FAMILY_TEXTS_H

#define FAMILY_TEXT                                                                                          \
    "\"dtype\": \"float32\", \"vocab_size\": 97, \"hidden_size\": 32, \"num_hidden_layers\": 4,"             \
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 12,"                           \
    " \"rope_theta\": 10000.0, \"initializer_range\": 0.2, \"num_experts_per_tok\": 2, "
/* A larger eps: see delta_nets_with_a_small_eps of test_layouts.c. */
#define DELTA_TEXT                                                                                           \
    "\"moe_intermediate_size\": 16, \"num_experts\": 8, \"shared_expert_intermediate_size\": 16,"            \
    " \"partial_rotary_factor\": 0.5, \"linear_num_key_heads\": 4, \"linear_num_value_heads\": 8,"          \
    " \"linear_key_head_dim\": 6, \"linear_value_head_dim\": 5, \"linear_conv_kernel_dim\": 3,"         \
    " \"rms_norm_eps\": 0.01, "
static const char *const family_text[] = {
    "{\"model_type\": \"glm4_moe\", " FAMILY_TEXT "\"intermediate_size\": 32, \"moe_intermediate_size\": 16,"
    " \"n_routed_experts\": 8, \"n_shared_experts\": 2, \"first_k_dense_replace\": 1,"
    " \"attention_bias\": true, \"routed_scaling_factor\": 2.5, \"use_qk_norm\": true}",
    "{\"model_type\": \"mixtral\", " FAMILY_TEXT "\"intermediate_size\": 16, \"num_local_experts\": 8}",
    "{\"model_type\": \"deepseek_v3\", " FAMILY_TEXT "\"intermediate_size\": 32,"
    " \"moe_intermediate_size\": 16, \"n_routed_experts\": 8, \"n_shared_experts\": 2,"
    " \"first_k_dense_replace\": 1, \"n_group\": 4, \"topk_group\": 2, \"q_lora_rank\": 12,"
    " \"kv_lora_rank\": 10, \"qk_nope_head_dim\": 6, \"qk_rope_head_dim\": 4, \"v_head_dim\": 5}",
    "{\"model_type\": \"gpt_oss\", " FAMILY_TEXT "\"intermediate_size\": 16, \"num_local_experts\": 8,"
    " \"sliding_window\": 5, \"layer_types\": [\"full_attention\", \"sliding_attention\","
    " \"sliding_attention\", \"full_attention\"]}",
    "{\"model_type\": \"olmoe\", " FAMILY_TEXT "\"intermediate_size\": 16, \"num_experts\": 8}",
    "{\"model_type\": \"qwen3_next\", " FAMILY_TEXT DELTA_TEXT "\"full_attention_interval\": 4}",
    "{\"model_type\": \"qwen3_5_moe_text\", " FAMILY_TEXT DELTA_TEXT "\"layer_types\":"
    " [\"linear_attention\", \"full_attention\", \"full_attention\", \"linear_attention\"]}",
};
enum { FAMILY_TEXTS = sizeof family_text / sizeof *family_text };

#endif
