"""Key and value extractors, bandwidths, feature maps: modules without memory."""
