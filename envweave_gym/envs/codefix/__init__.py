"""CodeFix: a small program with one wrong operator is shown, and the action chooses the right one."""
