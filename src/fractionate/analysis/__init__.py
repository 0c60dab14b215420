"""From the records of a study to its answer: tables, claims, figures and the report. No torch."""
