"""One-line errors for failures of Spark or its jobs: the cause, without the stack traces of two languages."""

import re

from utils.errors import UserError

_EXECUTOR = re.compile(r"\((?:TID \d+\) \()?([\w.:-]+) executor (\w+)\)")
_TRACE = "Traceback (most recent call last):"
_MODULE = re.compile(r"No module named '?([\w.]+)")
_KILLED = re.compile(r"Python worker exited unexpectedly|exited with code 137|exceeding (?:physical|virtual)? ?memory limits|OOMKilled")
_PYTHON = "the executors need this Python with the packages of requirements.txt: set PYSPARK_PYTHON to it"


def one_line(error: BaseException) -> UserError:
    """Return the cause of a job's failure."""
    text = _message(error)
    cause = _cause(text).partition(". Consider setting")[0]
    where = _EXECUTOR.search(text)
    at = f" (executor {where[2]} on {where[1]})" if where and where[2] != "driver" else ""
    return UserError(f"Spark: {cause}{at}{_advice(cause)}")


def start_failure(error: BaseException, master: str, log: str) -> UserError:
    """Return the cause of a session's failure to start, taken from the error or from Spark's log."""
    text = _message(error)
    if "JAVA_GATEWAY_EXITED" in text or "Java gateway process exited" in text:
        lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith(("\tat ", "WARNING", "Using "))]
        text = next((line for line in lines if "Exception" in line or "rror" in line), lines[-1] if lines else text)
    if "All masters are unresponsive" in log or "MASTER_UNRESPONSIVE" in text:
        text = "no master answers there"
    return UserError(f"Spark did not start on {master}: {_cause(text)}{_advice(text)}; --spark_log FILE keeps Spark's log")


def _message(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    if java is None:
        return str(error)
    try:
        text, cause = str(java.getMessage() or java.toString()), java.getCause()
        while cause is not None:
            text, cause = f"{text}\n{cause.toString()}", cause.getCause()
    except Exception:  # the JVM is gone: no further causes can be read
        return str(error)
    return text


def _cause(text: str) -> str:
    if _TRACE in text:
        trace = text.rpartition(_TRACE)[2].split("\n\n")[0].split("\n\tat ")[0]
        lines = [line for line in trace.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
        return _plain(lines[-1]) if lines else _plain(trace)
    found = re.search(r"Reason: ([^\n]+)", text) or re.search(r"executor \w+\): ([^\n]+)", text)
    if found:
        return _plain(found[1])
    lines = [line for line in text.splitlines() if line.strip()]
    return _plain(lines[0]) if lines else "no message"


def _plain(line: str) -> str:
    """Remove the packages from the names of exceptions."""
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z]\w*(?:Exception|Error)\b)", "", " ".join(line.split())).rstrip(".")


def _advice(cause: str) -> str:
    if "unmappable characters" in cause:
        return "; Java's locale knows only ASCII: set LC_ALL=C.UTF-8"
    if _KILLED.search(cause):
        return "; was it killed for lack of memory? Give executors more memory outside Java (spark.executor.memoryOverhead), or lower --block_bytes"
    if (missing := _MODULE.search(cause)) or "PYTHON_VERSION_MISMATCH" in cause or "Cannot run program" in cause:
        return f"; {_PYTHON}" if missing is None else f"; {missing[1]} is missing: {_PYTHON}"
    return ""
