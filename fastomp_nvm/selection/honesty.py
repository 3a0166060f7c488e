"""What the figures of a fairness report mean, and what they cannot say: the words of reports."""

from __future__ import annotations

__all__ = ["CANNOT_SEE", "FIGURES", "KINDS", "definition"]

#: Figures and differences -> what they are.
FIGURES = {
    "selection_rate": "share predicted to be of class 1",
    "accuracy": "share predicted correctly",
    "false_positive_rate": "share of class 0 predicted to be of class 1",
    "false_negative_rate": "share of class 1 predicted to be of class 0",
    "auc": "probability that the model ranks a member of class 1 above one of class 0",
    "mean_predicted": "mean of the predictions",
    "mean_observed": "mean of the outcomes",
    "calibration_error": "mean distance of predicted and observed share over ten equal bins of the prediction",
    "mean_residual": "observed minus predicted: positive means underestimated",
    "mean_absolute_error": "mean distance of prediction and outcome",
    "r2": "share of the variance within the group that is explained",
    "demographic_parity_difference": "largest minus smallest selection rate (statistical parity); 0 is even",
    "demographic_parity_ratio": "smallest over largest selection rate (disparate impact); 1 is even",
    "equalized_odds_difference": "larger of the gaps in false positive and false negative rates; 0 is even",
    "equal_opportunity_difference": "gap in true positive rates; 0 is even",
    "accuracy_difference": "largest minus smallest accuracy; 0 is even",
    "outcome_fairness": "minus the sum of the gaps in false positive and false negative rates; 0 is even",
    "mean_residual_difference": "largest minus smallest mean residual; 0 is even",
    "mean_absolute_error_difference": "largest minus smallest mean absolute error; 0 is even",
    "process_unfairness": "share of the people asked who object to a selected feature",
}

#: Kinds of fairness -> what they are here.
KINDS = {
    "Procedural fairness": "is about the inputs: which features people find acceptable to use. A fairness constraint limits the "
    "share of the people asked who object to at least one selected feature (process unfairness). It looks at no prediction.",
    "Outcome fairness": "is about the predictions: whether groups are selected, and wrongly judged, equally often. It is measured "
    "here and not enforced. Demographic parity, equalized odds and calibration generally exclude each other where groups differ in "
    "how often the outcome occurs; which one matters is a decision about the application.",
    "Proxies": "are features that stand for a protected attribute. Leaving the attribute out does not remove what other features "
    "say about it: the figures tell how well the selected ones predict it. They are of linear predictions: a low figure does not "
    "exclude that the attribute can be recovered in another way.",
}

#: What no figure of a report shows.
CANNOT_SEE = (
    "Whether the outcome was recorded fairly. Where the records are biased (arrests instead of offences, loans that were never "
    "granted), a model that agrees with them inherits the bias, and every figure here takes the records for the truth.",
    "Attributes that were not given, people who are not in the data, and groups too small to measure.",
    "Cause and effect, and what happens after a decision is made.",
    "How the survey behind a fairness constraint was taken, and whom it asked.",
    "Decisions at thresholds other than a probability of one half.",
    "The effect of the search: intervals are of the given model on other observations like these, not of the selection repeated; "
    "and a largest difference between several groups is above zero by chance alone. In-sample figures are optimistic.",
    "COMPAS, on which the method's paper reports to compare algorithms, is a criticised benchmark, as the paper itself says: its "
    "records are inaccurate, its categories of race too, and notions of fairness should not be tuned to a single data set.",
)


def definition(name: str) -> str:
    """Return what a figure or a difference is."""
    return FIGURES[name]
