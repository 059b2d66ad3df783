"""What requests and answers may say: the models behind the OpenAPI file."""
