"""Every mode of every operator that the specification lists is taken, with the operands that it lists.

The table below is written from the specification (section 3), not from the schemas: a mode or an operand that
is missing from them fails here. How many operands a mode has counts the optional ones that it is given.
"""

from __future__ import annotations

from typing import Any

from acc_pytest.operators import WITHOUT_REFERENCE, known, operator_of
from tests.each_case import check_each

Mode = tuple[dict[str, Any], int]


def each(key: str, values: Any, count: int, **more: Any) -> list[Mode]:
    """One mode for each value of a key."""
    return [({key: value, **more}, count) for value in values]


RANKS = {
    "rank": 0,
    "rankSize": 2,
    "rankRoot": 0,
    "backend": "lccl",
    "commMode": 0,
    "rankTableFile": "",
    "commDomain": "",
}
HCCL = {**RANKS, "backend": "hccl", "hcclComm": 0}
COUNTS = {"sendCounts": [1], "sdispls": [0], "recvCounts": [1], "rdispls": [0]}
NORM = {"quantType": 0, "epsilon": 1e-5}
EIGHT = {"quantType": 2, "epsilon": 1e-5}
FLASH = {"headNum": 2, "kvHeadNum": 1, "qScale": 0.5, "qkScale": 1.0}
PACKED = {"headNum": 2, "calcType": 3}
PAGED = {"headNum": 2, "qkScale": 1.0, "kvHeadNum": 1}
LATENT = {"headNum": 2, "kvHeadNum": 1, "qkScale": 1.0, "cacheMode": 1}
LINEAR = {"transposeA": False, "transposeB": True, "enAccum": False, "matmulType": 0, "quantMode": 0}
LASER = {
    "headNum": 1, "inputLayout": "BNSD", "scaleValue": 0.1, "keepProb": 1, "preTokens": 4, "nextTokens": 0,
    "sparseMode": 0, "innerPrecise": 0,
}  # fmt: skip
STRIDED = {key: [1] for key in ("m", "n", "k", "lda", "ldb", "ldc", "strideA", "strideB", "strideC")}
SAMPLING = {"randSeeds": [1], "randSeed": 1, "topk": 3, "logProbsSize": 2}
PARALLEL = {**RANKS, "transWeight": True, "rankSize": 2}

MODES: dict[str, list[Mode]] = {
    "Activation": [
        *each("activationType", (1, 2, 3, 4, 5, 6, 8, 9), 1, scale=1.0, dim=-1),
        ({"activationType": 7, "dim": -1}, 2),
        ({"activationType": 2, "geluMode": 1}, 1),
    ],
    "Elewise": [
        *each("elewiseType", (1, 2, 3, 4, 5, 6, 7, 19, 20), 1),
        *each("elewiseType", (8, 9, 10, 11, 12, 13, 14, 15, 16), 2),
        *each("elewiseType", (17, 18), 3),
        *each("elewiseType", (17, 18), 2),
        *each("outTensorType", (-1, 0, 1, 3, 9, 27), 1, elewiseType=1),
        *each("outTensorType", (34, 35, 36), 1, elewiseType=19),
        ({"elewiseType": 19, "quantParam": {"inputScale": 1.0, "asymmetric": True, "inputOffset": 0}}, 1),
        ({"elewiseType": 2, "mulsParam": {"varAttr": 2.0}}, 1),
        ({"elewiseType": 2, "varAttr": 2.0}, 1),
    ],
    "Cumsum": [({"axes": [0], "exclusive": False, "reverse": False}, 1)],
    "Reduce": each("reduceType", (1, 2, 3), 1, axis=[0]),
    "Softmax": [({"axes": [-1]}, 1), ({"axes": [0, 1]}, 1)],
    "Where": [({}, 3)],
    "Sort": [({"num": [3]}, 1)],
    "Multinomial": [({"numSamples": 2, "randSeed": 3}, 1)],
    "Transpose": [({"perm": [1, 0]}, 1)],
    "AsStrided": [({"size": [1], "stride": [1], "offset": [0]}, 1)],
    "Concat": [({"concatDim": -1}, 2)],
    "Split": [
        *each("splitNum", (2, 3), 1, splitDim=0, splitSizes=[]),
        ({"splitNum": 2, "splitSizes": [1, 2]}, 1),
    ],
    "Slice": [({"offsets": [-1], "size": [-1]}, 1)],
    "Repeat": [({"multiples": [2]}, 1)],
    "Fill": [
        ({"withMask": True, "value": [1.0]}, 2),
        ({"withMask": False, "value": [1.0], "outDim": [2]}, 0),
    ],
    "Gather": [({"axis": 1, "batchDims": 1}, 2)],
    "SetValue": [({"starts": [0], "ends": [1], "strides": [1]}, 2)],
    "Transdata": [({"transdataType": 1, "outCrops": [3, 4]}, 1), ({"transdataType": 2}, 1)],
    "Onehot": [({"axis": -1, "depth": 4}, 3)],
    "Nonzero": [({}, 1)],
    "IndexAdd": each("indexType", (1, 2), 4, axis=0),
    "ScatterElementsV2": each("reduction", (0, 1), 3, axis=0),
    "Pad": [({}, 4)],
    "Unpad": [({}, 4)],
    "Gating": [
        ({"topkExpertNum": 1, "cumSumNum": 0}, 2),
        ({"topkExpertNum": 2, "cumSumNum": 4, "deviceExpert": [1], "cumSumInt64": True}, 2),
    ],
    "GenAttentionMask": [({"seqLen": [1], "headNum": 1}, 1)],
    "KvCache": [({}, 5)],
    "ReshapeAndCache": [
        ({"compressType": 0, "kvCacheCfg": 0}, 5),
        ({"compressType": 0, "kvCacheCfg": 1}, 3),
        ({"compressType": 0, "kvCacheCfg": 2}, 5),
        ({"compressType": 1, "kvCacheCfg": 0}, 7),
        ({"compressType": 2, "kvCacheCfg": 0}, 8),
    ],
    "ReshapeAndCacheWithStride": [
        ({"compressType": 0, "kvCacheCfg": 0}, 9),
        ({"compressType": 0, "kvCacheCfg": 1}, 5),
        ({"compressType": 1, "kvCacheCfg": 0}, 11),
        ({"compressType": 2, "kvCacheCfg": 0}, 12),
    ],
    "ReshapeAndCacheOmni": [({}, 8)],
    "BlockCopy": [({}, 5)],
    "PagedCacheLoad": [
        *each("kvCacheCfg", (0, 1), 6, isSeqLensCumsumMode=True, hasSeqStarts=False),
        ({"hasSeqStarts": True}, 7),
    ],
    "LayerNorm": [
        ({"layerType": 1, "normParam": {**NORM, "beginNormAxis": 1, "beginParamsAxis": 1}}, 3),
        ({"layerType": 1, "normParam": EIGHT}, 5),
        *[({"layerType": 1, "normParam": {**EIGHT, "dynamicQuantType": kind}}, 3) for kind in (1, 2)],
        ({"layerType": 2, "preNormParam": {**NORM, "opMode": 1, "zoomScaleValue": 2.0}}, 4),
        ({"layerType": 3, "postNormParam": {**NORM, "opMode": 0, "zoomScaleValue": 2.0}}, 4),
        ({"layerType": 3, "postNormParam": EIGHT}, 6),
    ],
    "RmsNorm": [
        ({"layerType": 1, "normParam": {**NORM, "layerNormEps": 1e-5, "rstd": True}}, 2),
        *[({"layerType": 1, "normParam": {"precisionMode": one, "modelType": 1}}, 2) for one in (0, 1)],
        ({"layerType": 1, "normParam": EIGHT}, 5),
        *[({"layerType": 1, "normParam": {**EIGHT, "dynamicQuantType": kind}}, 3) for kind in (1, 2)],
        ({"layerType": 2, "preNormParam": NORM}, 3),
        ({"layerType": 2, "preNormParam": {**NORM, "hasBias": True}}, 4),
        ({"layerType": 2, "preNormParam": EIGHT}, 6),
        ({"layerType": 3, "postNormParam": {**NORM, "hasBias": True}}, 4),
        ({"layerType": 3, "postNormParam": EIGHT}, 5),
    ],
    "LayerNormWithStride": [({"layerType": 1, "normParam": NORM}, 5)],
    "RmsNormWithStride": [({"layerType": 1, "normParam": NORM}, 4)],
    "CohereLayerNorm": [({"epsilon": 1e-5}, 2)],
    "GatherPreRmsNorm": [({"epsilon": 1e-5}, 4)],
    "NormRopeReshape": [({"precisionMode": 0, "epsilon": 1e-5, "rotaryCoeff": 2}, 7)],
    "RmsNormBackward": [({}, 4)],
    "Linear": [
        ({**LINEAR, "hasBias": True}, 3),
        ({**LINEAR, "hasBias": False}, 2),
        ({**LINEAR, "hasBias": False, "enAccum": True}, 3),
        *each("outDataType", (1, 27), 4, **LINEAR, hasBias=True),
        *each("outDataType", (1, 27), 3, **LINEAR, hasBias=False),
        ({**LINEAR, "hasBias": True, "outDataType": 1, "quantMode": 1}, 4),
        ({**LINEAR, "hasBias": False, "outDataType": 1, "quantMode": 2}, 4),
        ({**LINEAR, "hasBias": True, "outDataType": 1, "quantMode": 2}, 5),
        ({**LINEAR, "hasBias": False, "matmulType": 1}, 2),
        ({**LINEAR, "hasBias": True, "matmulType": 1}, 3),
    ],
    "Matmul": [({"transposeA": True, "transposeB": True}, 2)],
    "LinearParallel": [
        *each("type", (0, 1, 2, 3), 2, **PARALLEL, quantType=-1),
        *each("type", (0, 1, 2, 3), 3, **PARALLEL, hasResidual=True),
        ({**PARALLEL, "type": 2, "keepIntermediate": True}, 2),
        ({**PARALLEL, "type": 4, "twoDimTPInfo": {"agDim": 1, "rsDim": 2, "innerDimIsAg": 1}}, 2),
        *each("quantType", (0, 1), 4, **PARALLEL, type=0, outDataType=1),
        ({**PARALLEL, "type": 0, "quantType": 2, "quantGroupSize": 64}, 4),
        ({**PARALLEL, "type": 0, "quantType": 3, "outDataType": 27}, 5),
        *each("type", (5, 6), 4, **PARALLEL, local_expert_nums=2, epSize=2, tpSize=1),
        *each("type", (5, 6), 4, **PARALLEL, moeInfo={"localExpertNums": 2, "epSize": 2, "tpSize": 1}),
        *each("type", (5, 6), 5, **PARALLEL, quantType=1, outDataType=1),
        *each("type", (5, 6), 6, **PARALLEL, quantType=3, outDataType=1),
    ],
    "StridedBatchMatmul": [
        ({"transposeA": True, "transposeB": False, "batch": 1, "headNum": 1, **STRIDED}, 2),
        ({"transA": True, "transB": False, "batch": 1, "head_num": 1, **STRIDED}, 2),
    ],
    "GroupedMatmulInplaceAdd": [({"transposeA": True, "transposeB": False}, 4)],
    "GroupedMatmulWithRouting": [
        *each("moeType", (0, 1), 4, transposeB=True, topK=2, outDataType=-1),
        *each("groupedMatmulType", (0, 1), 6, transposeB=True, topK=2, outDataType=1),
    ],
    "MmDeqSwigluQuantMmDeq": each(
        "weightUpPermuteType", (0, 1), 6, outputType=1, transposeWeightUp=False, transposeWeightDown=True
    ),
    "GmmDeqSwigluQuantGmmDeq": each("groupListType", (0, 1), 7, weightUpPermuteType=1),
    "Rope": each("rotaryCoeff", (2, 4, 64, 128), 5, cosFormat=0),
    "RopeGrad": [({"c_qSeqLen": [1]}, 4), ({"qSeqLen": [1]}, 4)],
    "RopeQConcat": [({}, 4)],
    "DynamicNTK": each("outputType", (1, 27), 3),
    "SelfAttention": [
        ({**FLASH, "maskType": 0}, 8),
        *each("maskType", (1, 2, 3, 7, 8), 9, **FLASH, calcType=1),
        *each("maskType", (4, 5, 6), 10, **FLASH, calcType=1),
        ({**FLASH, "calcType": 2, "maskType": 7, "windowSize": 4}, 8),
        ({**FLASH, "calcType": 2, "maskType": 1, "batchRunStatusEnable": True, "scaleType": 1}, 11),
        ({**FLASH, "kvcacheCfg": 1}, 6),
        ({**FLASH, "kvcacheCfg": 1, "maskType": 1, "scaleType": 1}, 8),
        ({**FLASH, "kvcacheCfg": 1, "calcType": 2, "maskType": 7, "windowSize": 4, "cacheType": 1}, 6),
        ({**FLASH, "clampType": 1, "clampMin": -1.0, "clampMax": 1.0}, 8),
        ({**PACKED, "maskType": 0}, 4),
        ({**PACKED, "maskType": 9}, 4),
        *each("maskType", (1, 2, 3, 7, 8), 5, **PACKED, windowSize=4, isTriuMask=1),
        *each("maskType", (4, 5, 6), 6, **PACKED),
        *each("maskType", (4, 5, 6), 5, **PACKED),
        *each("kernelType", (0, 1, 2), 4, **PACKED),
        ({**PACKED, "mlaVHeadSize": 16}, 3),
        ({**PACKED, "scaleType": 1, "maskType": 1}, 6),
        ({**PACKED, "quantType": 3, "outDataType": 1}, 8),
        ({**PACKED, "quantType": 2, "outDataType": 27}, 9),
        ({**PACKED, "inputLayout": 1}, 4),
        ({"headNum": 1, "calcType": 4, "maskType": 9}, 6),
        ({"headNum": 1, "calcType": 4, "maskType": 1}, 7),
        ({"headNum": 1, "calcType": 4, "maskType": 4}, 8),
    ],
    "PagedAttention": [
        ({**PAGED, "maskType": 0}, 5),
        *each("maskType", (1, 2), 6, **PAGED),
        *each("maskType", (1, 3, 4), 7, **PAGED, calcType=1),
        ({**PAGED, "maskType": 5, "compressType": 1}, 6),
        ({**PAGED, "batchRunStatusEnable": True}, 6),
        ({**PAGED, "quantType": 1}, 7),
        ({**PAGED, "quantType": 1, "hasQuantOffset": True}, 9),
        ({**PAGED, "quantType": 2, "outDataType": 1}, 8),
        ({**PAGED, "quantType": 3, "outDataType": 27}, 7),
        ({**PAGED, "compressType": 1}, 5),
        ({**PAGED, "compressType": 2}, 6),
        ({**PAGED, "mlaVHeadSize": 16}, 4),
        ({**PAGED, "scaleType": 1}, 6),
        ({**PAGED, "inputLayout": 1}, 5),
        ({**PAGED, "qScale": 0.5}, 5),
    ],
    "MultiLatentAttention": [
        *each("calcType", (0, 2), 6, **LATENT),
        *each("calcType", (1, 3), 7, **LATENT),
        *each("maskType", (1, 2), 8, **LATENT, calcType=1),
        ({**LATENT, "cacheMode": 2}, 8),
        ({**LATENT, "cacheMode": 2, "calcType": 1, "maskType": 1}, 10),
        ({**LATENT, "cacheMode": 3}, 6),
        ({**LATENT, "calcType": 4}, 7),
        *each("maskType", (2, 4), 8, **LATENT, calcType=4, windowSize=4),
        ({**LATENT, "calcType": 4, "maskType": 3}, 7),
        ({**LATENT, "calcType": 4, "maskType": 2, "maskUseStatusType": 1}, 9),
    ],
    "RingMLA": [
        *each(
            "maskType",
            (0, 1),
            9,
            calcType=0,
            headNum=1,
            kvHeadNum=1,
            qkScale=1.0,
            kernelType=1,
            inputLayout=0,
        ),
        ({"calcType": 1, "headNum": 1}, 7),
    ],
    "RelayAttention": [
        ({"headNum": 1, "kvHeadNum": 1, "qkScale": 1.0, "maskType": 0}, 9),
        ({"headNum": 1, "maskType": 1}, 10),
    ],
    "RazorFusionAttention": [
        (
            {
                "headNum": 1,
                "kvHeadNum": 1,
                "qkScale": 1.0,
                "razorLen": 1,
                "preTokens": 0,
                "nextTokens": 128,
                "tileQ": 1,
                "tileKv": 1,
                "textQLen": 1,
                "textKvLen": 1,
            },
            3,
        )
    ],
    "LaserAttention": [(LASER, 10), (LASER, 7), (LASER, 3), ({**LASER, "inputLayout": "SBH"}, 10)],
    "LaserAttentionGrad": [(LASER, 15), (LASER, 12)],
    "FaUpdate": [({"faUpdateType": 0, "sp": 2}, 2)],
    "MlaPreprocess": [
        *[
            ({"cacheMode": cache, "quantMode": quant, "epsilon": 1e-5}, 24)
            for cache in range(4)
            for quant in range(4)
        ],
        ({}, 21),
    ],
    "TopkToppSampling": [
        ({**SAMPLING, "topkToppSamplingType": 0}, 2),
        ({**SAMPLING, "topkToppSamplingType": 1}, 3),
        *each("topkToppSamplingType", (2, 3, 4), 4, **SAMPLING),
    ],
    "GroupTopk": each("groupMultiFlag", (0, 1), 2, groupNum=4, k=2, n=2),
    "FusedAddTopkDiv": [
        (
            {
                "groupNum": 1,
                "groupTopk": 1,
                "n": 1,
                "k": 1,
                "activationType": 8,
                "isNorm": True,
                "scale": 1.0,
            },
            2,
        ),
        ({"enableExpertMapping": True}, 4),
    ],
    "SwigluQuant": [({"quantType": 0}, 1)],
    "AllGather": [(HCCL, 1), (RANKS, 1)],
    "AllReduce": [
        *each("allReduceType", ("sum", "prod", "max", "min"), 1, **HCCL, quantType=0, outDataType=-1),
        *each("quantType", (1, 2), 3, **HCCL, allReduceType="sum", outDataType=1),
    ],
    "Broadcast": [(HCCL, 1)],
    "ReduceScatter": each("reduceType", ("sum", "prod", "max", "min"), 1, **RANKS),
    "ReduceScatterV": each(
        "reduceType", ("sum", "max", "min"), 5, **HCCL, sendCounts=[1], sdispls=[0], recvCount=1
    ),
    "AllGatherV": [(HCCL, 5)],
    "AllToAll": each("transpose", (False, True), 1, **RANKS),
    "AllToAllV": [({**HCCL, **COUNTS}, 1)],
    "AllToAllVV2": [(HCCL, 6)],
    "Send": [({**HCCL, "destRank": 1}, 1)],
    "Recv": [({**HCCL, "srcRank": 1}, 1)],
    "FastSoftMax": [({"headNum": 1, "qSeqLen": [1]}, 1)],
    "FastSoftMaxGrad": [({"headNum": 1, "qSeqLen": [1]}, 2)],
    "PadWithHiddenState": [({"qSeqLen": [1], "maxSeqLen": 2}, 1)],
    "UnpadWithHiddenState": [({"qSeqLen": [1], "maxSeqLen": 2}, 1)],
}
CASES = [(name, param, count) for name, modes in MODES.items() for param, count in modes]


def is_taken(mode: tuple[str, dict[str, Any], int]) -> None:
    name, param, count = mode
    inputs = operator_of(f"{name}Operation", param).inputs
    needed = max((i + 1 for i, operand in enumerate(inputs) if not operand.endswith("?")), default=0)
    assert needed <= count <= len(inputs), inputs


def test_every_mode_of_the_specification_is_taken_with_its_operands() -> None:
    check_each([(f"{case[0]} {case[1]}", case) for case in CASES], is_taken)


def test_no_operator_of_the_specification_is_missing_and_none_is_made_up() -> None:
    assert {f"{name}Operation" for name in MODES} == set(known())
    assert sorted(WITHOUT_REFERENCE) == ["EventOperation", "IfCondOperation", "LinearSparseOperation"]
    # 81 compute operators, one of them not to be computed, and Matmul of old dumps
    assert len(MODES) == 81 - 1 + 1
