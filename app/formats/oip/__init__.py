"""The Open Inference Protocol over REST: infer requests in JSON and in binary to requests, and answers to both."""
