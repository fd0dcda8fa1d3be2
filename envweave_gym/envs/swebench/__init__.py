"""SWE-bench Lite: choose the file that must change, or write the patch."""
