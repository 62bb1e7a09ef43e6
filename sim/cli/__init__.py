"""The command line; each verb is loaded when it is called."""
