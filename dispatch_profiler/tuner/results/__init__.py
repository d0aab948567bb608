"""The winners of a search: compared again, judged, and summed up as an uplift."""
