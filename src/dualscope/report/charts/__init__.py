"""Charts: how they are drawn, coloured and labelled."""
