"""One line of JSON as a request comes, fails or ends."""

from deepinfer_request_logger.logger import Config, RequestLogger

__all__ = ["Config", "RequestLogger"]
