"""Where work runs: the choice by size, the measured rates behind it, and the pool of threads."""
