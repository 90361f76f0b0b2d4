"""Questions about one of many documents that have nothing to do with each other."""

from tessera.papers.document_qa.task import DocumentQA

__all__ = ["DocumentQA"]
